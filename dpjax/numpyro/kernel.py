"""Kernels of dpjax inside `numpyro.infer.MCMC`."""

import json
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.experimental import io_callback
from numpyro.infer import mcmc
from numpyro.util import is_prng_key

from dpjax import privacy
from dpjax.algorithm import Algorithm
from dpjax.numpyro.fisher import initial_position
from dpjax.posterior import Posterior
from dpjax.runner.hashes import digest, keyed
from dpjax.runner.program import arrays_of, check_algorithm
from dpjax.runner.results import PrivacyStatement

__all__ = ["KernelState", "MCMCKernel"]

SEEDED = "the JAX key of MCMC.run: whoever knows it can undo the privacy"


class KernelState(NamedTuple):
    """State of a chain. All of it is public but the keys.

    position
        The unconstrained position.
    kernel
        State of the dpjax algorithm.
    is_accepted
        Whether the last step moved.
    num_steps
        Number of steps made so far, all of them paid for.
    rng_key
        The secret key of the last call of `MCMC.run` or `MCMC.warmup`.
    chain_key
        The secret key that steps draw from. It depends on the kernel, the data, the
        start and every `rng_key` so far, as NumPyro may give two chains one `rng_key`:
        noise that they share would show what they differ by without noise.
    """

    position: Any
    kernel: Any
    is_accepted: jax.Array
    num_steps: jax.Array
    rng_key: jax.Array
    chain_key: jax.Array


class MCMCKernel(mcmc.MCMCKernel):
    """A dpjax sampler within a budget, as a kernel for `numpyro.infer.MCMC`.

    Parameters
    ----------
    posterior
        What to sample, and the data. `MCMC.run` takes no arguments but a key.
    algorithm_fn
        ``posterior -> Algorithm``, as `dpjax.run` takes it.
    budget
        What everything drawn with this kernel may spend.
    num_chains
        Number of chains that share the budget.
    spent
        ``[(event, count), ...]`` released before, as in ``Tuned.spent`` of
        `dpjax.numpyro.tuned`. This kernel may be chosen in view of what was released.

    Raises
    ------
    privacy.BudgetError
        If the budget does not pay for one step. `MCMC.run` raises it if it begins more
        chains than were paid for; to continue the chains that have begun, set
        ``mcmc.post_warmup_state = mcmc.last_state``.
    ValueError
        `MCMC.run` raises it if it is given data, or fewer warm-up steps than the
        algorithm tunes for, or, like `dpjax.run`, if its program returns records other
        than through a release.

    Notes
    -----
    `dpjax.run` is faster and safer: NumPyro compiles the data into its program, draws
    its randomness from a JAX key and keeps no ledger. The keys are in
    ``mcmc.last_state``. An `MCMC` object cannot be pickled, because the pickle would
    hold the records.

    *Formal guarantees.* Samples, and extra fields other than the keys, are released at
    the cost that the attribute ``statement`` gives. The kernel counts steps on the
    host, over all calls of `MCMC.run` and `MCMC.warmup`. A chain that has made
    ``max_steps`` steps, or any chain once all of them are made, no longer moves and
    releases nothing more.
    """

    # If a kernel has a model, ArviZ runs it to store observations and log-likelihoods.
    model = None

    def __init__(
        self,
        posterior: Posterior,
        algorithm_fn: Callable[[Posterior], Algorithm],
        *,
        budget: privacy.Budget,
        num_chains: int = 1,
        spent=(),
    ):
        self._posterior = posterior
        self._algorithm_fn = algorithm_fn
        self._algorithm = algorithm_fn(posterior)
        self._num_chains, self._num_begun = num_chains, 0
        self._lock = threading.Lock()
        # NumPyro does not call `init` for a resumed chain once this is set.
        self._sample_fn = None
        step = self._algorithm.privacy(1, budget.neighboring_relation)
        self._events = events = [(event, count * num_chains) for event, count in step]
        before = [list(spent)] if spent else []
        rule = privacy.AdaptiveRule.renyi(spent or events, budget)
        self.max_steps = rule.max_steps(events, before, budget)
        if self.max_steps == 0:
            raise privacy.BudgetError(
                f"epsilon = {budget.epsilon} at delta = {budget.delta} does not pay "
                f"for one step of {num_chains} chains: lower the clip bound or the "
                "step size, or run fewer chains"
            )
        self._num_left = self.max_steps * num_chains
        paid = [(event, count * self.max_steps) for event, count in events]
        self.statement = PrivacyStatement.of(
            paid, budget, num_chains, self.max_steps, shared=spent
        )._replace(randomness=SEEDED)

    @property
    def sample_field(self):
        return "position"

    def init(self, rng_key, num_warmup, init_params, model_args, model_kwargs):
        if model_args or model_kwargs:
            raise ValueError(
                "the data belong to the posterior of the kernel; call MCMC.run with a "
                "key alone, as MCMC keeps and pickles its arguments"
            )
        if num_warmup < (needed := self._algorithm.transition.num_warmup):
            raise ValueError(
                f"the first {needed} steps tune the kernel: MCMC needs a num_warmup of "
                f"as many, got {num_warmup}"
            )
        is_one = is_prng_key(rng_key)
        # Mapped over devices or by jax.vmap, one call begins all chains.
        mapped = isinstance(rng_key, Tracer)
        begun = self._num_chains if mapped else 1 if is_one else len(rng_key)
        first, self._num_begun = self._num_begun, self._num_begun + begun
        if self._num_begun > self._num_chains:
            raise privacy.BudgetError(
                f"the budget is divided among {self._num_chains} chains, which have "
                "begun. To continue them set mcmc.post_warmup_state = mcmc.last_state; "
                "for others make a kernel with a budget of its own"
            )
        self._sample_fn = self._step
        if init_params is None:
            chains = initial_position(self._posterior, self._num_chains)
            here = first if is_one else slice(first, self._num_begun)
            init_params = jax.tree.map(lambda leaf: leaf[here], chains)
        if first == 0:
            starts = init_params
            if is_one:
                starts = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], starts)
            program = check_algorithm(self._algorithm_fn, self._posterior, starts)
            self._words = self._identity(program)
        begin = self._begin if is_one else jax.vmap(self._begin)
        return begin(init_params, rng_key)

    def _identity(self, program: str) -> np.ndarray:
        """Eight words that differ for kernels that differ, or their data."""
        step = [[event.to_json(), count] for event, count in self._events]
        read = arrays_of(self._algorithm_fn), self._posterior.data
        return np.frombuffer(
            keyed(digest(read), json.dumps([program, step]).encode()), np.uint32
        )

    def _begin(self, position, rng_key):
        words = [
            lax.bitcast_convert_type(leaf.astype(float), jnp.uint32).ravel()
            for leaf in jax.tree.leaves(position)
        ]
        chain_key = _folded(rng_key, jnp.concatenate([self._words, *words]))
        # Mapped with the key: one count for all mapped chains would be called once.
        num_steps = jnp.sum(0 * jax.random.key_data(rng_key)).astype(int)
        kernel, not_moved = self._algorithm.init(position), jnp.zeros((), bool)
        return KernelState(position, kernel, not_moved, num_steps, rng_key, chain_key)

    def sample(self, state, model_args, model_kwargs):
        if is_prng_key(state.rng_key):
            return self._step(state)
        return jax.vmap(self._step)(state)

    def _take(self, is_wanted):
        """Count one step of a chain, on the host, and say whether it is paid for.

        A count in the state would not do: NumPyro starts chains again from an earlier
        state, such as that after the warm-up. The count depends on no data.
        """
        with self._lock:
            is_paid = bool(is_wanted) and self._num_left > 0
            self._num_left -= is_paid
        return np.bool_(is_paid)

    def _step(self, state):
        rng_key, fresh = jax.random.split(state.rng_key)
        chain_key = _folded(state.chain_key, jax.random.key_data(fresh))
        chain_key, draw = jax.random.split(chain_key)
        is_paid = io_callback(
            self._take,
            jax.ShapeDtypeStruct((), bool),
            state.num_steps < self.max_steps,
        )
        kernel, info = self._algorithm.step(draw, state.kernel)
        kernel = jax.tree.map(
            lambda new, old: jnp.where(is_paid, new, old), kernel, state.kernel
        )
        moved, num_steps = info.is_accepted & is_paid, state.num_steps + is_paid
        return KernelState(
            kernel.position, kernel, moved, num_steps, rng_key, chain_key
        )

    def postprocess_fn(self, model_args, model_kwargs):
        return self._posterior.constrain_fn or super().postprocess_fn((), {})

    def get_diagnostics_str(self, state):
        return f"{state.num_steps} of {self.max_steps} steps paid for"

    def __reduce__(self):
        raise TypeError(
            "a kernel holds the private records and is not pickled; keep "
            "mcmc.get_samples() instead"
        )


def _folded(key, words):
    """A key that depends on all the words."""
    key, _ = lax.scan(
        lambda key, word: (jax.random.fold_in(key, word), None), key, words
    )
    return key
