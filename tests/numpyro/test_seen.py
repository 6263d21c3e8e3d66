"""Latents of which the made-up records of an example tell nothing."""

import warnings

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from dpjax.numpyro.adapter import model_of, posterior
from dpjax.numpyro.seen import check_latents


def hierarchical(group, x, y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    law = dist.Normal(mean * jnp.ones(9), scale).to_event(1)
    effect = numpyro.sample("effect", law)
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("data", len(y)):
        logits = effect[group] + x @ slope
        numpyro.sample("obs", dist.Bernoulli(logits=logits), obs=y)


def checked(group, x):
    data = dict(group=np.arange(500) % 9, x=np.ones((500, 2)), y=np.ones(500))
    example = dict(group=group, x=x)
    check_latents(
        model_of(posterior(hierarchical, data, plate="data", example=example))
    )


def test_groups_of_which_no_record_tells_are_named():
    """The two records of the last group count, among 600 of the others."""
    group = np.concatenate([np.arange(600) % 2, [8, 8]])
    message = r"tells of effect\[2\], effect\[3\], .* effect\[7\]\. The fit"
    with pytest.warns(UserWarning, match=message):
        checked(group, np.ones((602, 2)))


def test_columns_that_are_zero_are_named():
    with pytest.warns(UserWarning, match=r"tells of slope\[1\]\. The fit"):
        checked(np.arange(30) % 9, np.ones((30, 2)) * [1, 0])


def test_hyperparameters_are_no_such_latents():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checked(np.arange(600) % 9, np.ones((600, 2)))
