"""What a run returns: draws, accept rates and the privacy statement. All public."""

import functools
import json
import math
import platform
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dpjax import caller
from dpjax.fit.names import short_sites_first, site_of
from dpjax.runner import checks
from dpjax.runner.checks import Check
from dpjax.runner.files import sync
from dpjax.runner.predict import predict
from dpjax.runner.statement import PrivacyStatement
from dpjax.vi.dpvi import DPVIInfo

__all__ = ["Fit", "Run", "load"]

MAX_SHOWN = 20
"""Components whose summary the print of a run shows."""

MIN_DRAWS = 4
"""The least number of draws of a chain from which R-hat is computed."""

PACKAGES = "dpjax", "jax", "numpyro", "blackjax", "numpy"
"""Packages whose versions a run holds."""

DRAWS = "draws.nc"
"""The file in the folder of ``dpjax run`` that holds its run."""


@functools.cache
def _import_arviz() -> Any:
    """ArviZ, without the notice of its next version that it shows once a day."""
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        import arviz
    return arviz


def _versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        **{package: version(package) for package in PACKAGES},
    }


@dataclass(frozen=True)
class Run:
    """Draws of a private run.

    All that it holds is released or public, and so is all that its methods return and
    write.

    positions
        Pytree of arrays ``(num_chains, num_draws, ...)``: positions of the chains, or
        parameters if the posterior has a `constrain_fn`.
    acceptance_rate
        ``(num_chains, num_draws)``: the share of the steps since the draw before that
        moved the chain. None if the kernel does not accept or reject.
    statement
        What the run cost.
    infos
        Infos of the steps that the draws are from, such as noisy gradients, leaves
        ``(num_chains, num_draws, ...)``. None if the kernel accepts or rejects.
    component_names
        Names for the components of a position that is one vector.
    configuration
        The tables of the file that ``dpjax run`` read; otherwise None.
    versions
        Of Python and of packages, by name, when the draws were made.
    """

    positions: Any
    acceptance_rate: np.ndarray | None
    statement: PrivacyStatement
    infos: Any = None
    component_names: list[str] | None = field(default=None, kw_only=True)
    configuration: dict[str, Any] | None = field(default=None, kw_only=True)
    versions: dict[str, str] = field(default_factory=_versions, kw_only=True)

    def __repr__(self) -> str:
        """The statement, a summary of `MAX_SHOWN` components, and what they fail."""
        table, num_components = self.short_summary(MAX_SHOWN)
        lines = [str(self.statement), table.to_string()]
        if left := num_components - len(table):
            lines.append(f"... and {left} more components")
        lines += [str(check) for check in self.checks(table) if not check.is_fine]
        return "\n".join(lines)

    def to_arviz(
        self,
        *,
        coords: Mapping[str, Any] | None = None,
        dims: Mapping[str, Any] | None = None,
    ):
        """The draws as `arviz.InferenceData`, with the statement in its attributes.

        The attributes of its group ``posterior`` hold the statement as well.

        Acceptance rates, or else infos, are its `sample_stats`. The configuration and
        versions are in the attributes as well, as JSON. A slash in the name of a site,
        which netCDF does not allow, is a dot. Beside a site ``a.b``, the site ``a/b``
        is ``a.b_``.

        Parameters
        ----------
        coords, dims
            As in `arviz.from_dict`: labels by the name of an axis, such as
            ``{"ward": ["A", "B"]}``, and the axes of a site, ``{"effects": ["ward"]}``.

        Raises
        ------
        ValueError
            If the labels do not fit the draws.
        """
        arviz = _import_arviz()
        sites, infos, released = dict(_by_site(self.positions)), {}, {}
        has_sites = not jax.tree_util.all_leaves([self.positions])
        attributes = self.statement._asdict() | {
            "versions": json.dumps(self.versions),
            "configuration": json.dumps(self.configuration, default=str),
            "sites": json.dumps(list(sites) if has_sites else None),
            "infos": json.dumps(_encoded(self.infos, "", infos)),
            **self._extras(released),
        }
        if self.acceptance_rate is not None:
            infos = {"acceptance_rate": self.acceptance_rate}
        coords, dims = dict(coords or {}), dict(dims or {})
        if self.component_names is not None:
            coords["component"] = self.component_names
            dims["position"] = ["component"]
        return arviz.from_dict(
            posterior={stored: sites[name] for name, stored in _stored(sites).items()},
            posterior_attrs=self.statement._asdict(),
            sample_stats=infos or None,
            constant_data=released or None,
            attrs=attributes,
            coords=coords,
            dims=dims,
        )

    def _extras(self, arrays: dict) -> dict[str, str]:
        """Further attributes of a file; arrays that they mention go into `arrays`."""
        return {}

    def save(self, path) -> None:
        """Write everything to a netCDF file, from which `dpjax.load` reads it.

        The file is that of `to_arviz`, so that ArviZ and xarray read it too. One that
        exists is replaced.

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        self.to_arviz().to_netcdf(str(path))
        sync(path)

    def to_dataframe(self):
        """The draws as a `pandas.DataFrame`.

        There is one row for a draw, named by chain and draw, and one column for every
        component.
        """
        import pandas

        names, draws = self.components()
        rows = pandas.MultiIndex.from_product(
            [range(draws.shape[0]), range(draws.shape[1])], names=["chain", "draw"]
        )
        return pandas.DataFrame(draws.reshape(len(rows), -1), rows, names)

    def summary(self, hdi_prob: float = 0.94):
        """Mean, sd, interval, effective sample sizes and R-hat of every component.

        Parameters
        ----------
        hdi_prob
            Probability of the interval of highest density, as in `arviz.summary`.

        Returns
        -------
        pandas.DataFrame
            One row a component. R-hat of a chain that is alone compares its halves.

        Warns
        -----
        UserWarning
            If a check fails, such as that chains have mixed. It says what to change.
        """
        table = self.summary_of(*self.components(), hdi_prob)
        for check in self.checks(table):
            if not check.is_fine:
                caller.warn(str(check))
        return table

    def checks(self, table=None) -> list[Check]:
        """What to check before the draws are believed: see `dpjax.runner.checks`.

        Parameters
        ----------
        table
            The summary of the components to check. Default: of all.
        """
        if table is None:
            table = self.summary_of(*self.components())
        num_chains = len(jax.tree.leaves(self.positions)[0])
        num_fits = num_chains if isinstance(self.infos, DPVIInfo) else 0
        return checks.of_chains(table, self.acceptance_rate, num_fits)

    def predict(
        self,
        model: Any,
        inputs: Mapping[str, Any] | None = None,
        *,
        num_records: int | None = None,
        num_draws: int | None = None,
        rng_key: jax.Array | None = None,
    ) -> dict[str, np.ndarray]:
        """Observations that the draws predict, such as private synthetic records.

        Parameters
        ----------
        model
            The NumPyro model that was sampled: its posterior from
            `dpjax.numpyro.posterior`, or the function itself.
        inputs
            Arguments of the model by name, with the records to predict along the
            leading axis. Given a posterior, what the model observes may be left out
            if a latent decides its law, and `public` arguments are known. A function
            gets all of its arguments here; of those that it observes only the shape is
            used.
        num_records
            How many records to predict, where no input says it.
        num_draws
            Number of draws that predict, evenly spread over all; default: all.
        rng_key
            A JAX key. It need not be secret; the default is ``jax.random.key(0)``.

        Returns
        -------
        Arrays ``(num_draws, num_records, ...)`` by the names of the observed sites:
        each draw predicts a data set of its own. Deterministic sites of the model are
        among them. A model with a `simulate_fn` gives whole records, by the names of
        the data.

        Raises
        ------
        ValueError
            If the run is not that of a NumPyro model, inputs lack what the model does
            not generate, or the model draws nothing.

        Notes
        -----
        *Formal guarantees.* Predictions are functions of the draws and of the
        arguments, so they are as private as the draws if the inputs are public or made
        up, and no further budget is spent. Predictions at the covariates of the records
        are **not** private: they show those covariates.
        """
        inputs = {} if inputs is None else inputs
        key = jax.random.key(0) if rng_key is None else rng_key
        return predict(self.positions, model, inputs, num_records, num_draws, key)

    def short_summary(self, room: int):
        """A summary of at most `room` components, and how many there are.

        If there is no room for all, it is of those of `short_sites_first`.
        """
        names, draws = self.components()
        shown = short_sites_first(names, room)[:room]
        return self.summary_of([names[i] for i in shown], draws[..., shown]), len(names)

    def summary_of(self, names: list[str], draws: np.ndarray, hdi_prob: float = 0.94):
        """The summary of some of the `components`, without a warning."""
        arviz = _import_arviz()

        def summary(draws, **options):
            # ArviZ divides by zero where a component stands still.
            with warnings.catch_warnings(action="ignore"):
                return arviz.summary(arviz.from_dict({"x": draws}), **options)

        table: Any = summary(draws, kind="stats", round_to="none", hdi_prob=hdi_prob)
        rows = zip(table.to_numpy(), table["sd"], strict=True)
        table[:] = [_rounded(row, sd) for row, sd in rows]
        chains = self._chains(draws)
        if chains.shape[1] >= MIN_DRAWS:
            # Effective sample sizes say what standard errors of means say, and a
            # terminal is 80 columns wide.
            found = summary(chains, kind="diagnostics")
            table = table.join(found.drop(columns=["mcse_mean", "mcse_sd"]))
        table.index = names
        return table

    def _chains(self, draws: np.ndarray) -> np.ndarray:
        """What R-hat compares: the chains, or the halves of a chain that is alone."""
        if len(draws) > 1:
            return draws
        half = draws.shape[1] // 2
        return draws[0, draws.shape[1] % 2 :].reshape(2, half, draws.shape[2])

    def components(self) -> tuple[list[str], np.ndarray]:
        """Names of the scalar components, and ``(num_chains, num_draws, components)``.

        They are those of ArviZ, as in ``"slopes[0, 1]"``.
        """
        names, columns = [], []
        for name, leaf in _by_site(self.positions):
            leaf = np.asarray(leaf)
            places = np.ndindex(leaf.shape[2:])
            names += [f"{name}{list(place) or ''}" for place in places]
            columns.append(leaf.reshape(*leaf.shape[:2], -1))
        return self.component_names or names, np.concatenate(columns, axis=2)


def _rounded(values: np.ndarray, sd: float) -> np.ndarray:
    """To three decimals, or to two digits of a standard deviation that is small."""
    is_small = 1e-300 < sd < 1e-2
    return np.round(values, 1 - math.floor(math.log10(sd)) if is_small else 3)


@dataclass(frozen=True, repr=False)
class Fit(Run):
    """Draws from the posterior that noisy sums imply.

    Their width includes what noise adds. They are not the states of Markov chains, so
    their summary has no R-hat. But not all of them are independent:
    `dpjax.fit.score_draws` shares its draws of the slope among them,
    `dpjax.fit.pinned_draws` runs NUTS, and so does `dpjax.fit.simulated_draws` where
    records leave a direction undetermined, or the posterior is so curved that it finds
    too few independent draws.

    released
        All that the draws follow from.
    known
        What the draws know; it prints as a sentence.
    """

    released: Any = None
    known: Any = None

    def __repr__(self) -> str:
        return f"{super().__repr__()}\n{self.known}"

    def checks(self, table=None) -> list[Check]:
        """As `Run.checks`, of the fit: the draws are no chains."""
        return checks.of_fit(self.known)

    def _extras(self, arrays: dict) -> dict[str, str]:
        return {
            "released": json.dumps(_encoded(self.released, "", arrays)),
            "known": json.dumps(_encoded(self.known, "", arrays)),
        }

    def _chains(self, draws: np.ndarray) -> np.ndarray:
        """None: the draws are no chains."""
        return draws[:, :0]


def load(path) -> Run:
    """The run that `Run.save` or ``dpjax run`` wrote.

    Parameters
    ----------
    path
        The file, or the folder of ``dpjax run``.

    Returns
    -------
    Run or Fit
        With equal arrays. Positions are an array or a dict of arrays by name, whatever
        pytree they were; infos and what a fit released are of their classes.

    Raises
    ------
    ValueError
        If the file holds no run.
    OSError
        If there is no such file, or it is damaged.
    """
    arviz = _import_arviz()
    path = Path(path)
    path = path / DRAWS if path.is_dir() else path
    with arviz.rc_context({"data.load": "eager"}):
        found: Any = arviz.from_netcdf(str(path))
    attributes = found.attrs
    needed = set(PrivacyStatement._fields) - PrivacyStatement._field_defaults.keys()
    if not {*needed, "sites"} <= attributes.keys():
        raise ValueError(
            f"{path} holds no run: it was not written by Run.save or `dpjax run`"
        )

    def arrays(group):
        values = getattr(found, group, {})
        return {name: value.to_numpy() for name, value in values.items()}

    def decoded(name, group):
        return _decoded(json.loads(attributes[name]), arrays(group))

    statement = {
        name: np.asarray(attributes[name]).item()
        for name in PrivacyStatement._fields
        if name in attributes
    }
    draws, names = arrays("posterior"), json.loads(attributes["sites"])
    positions = {name: draws[key] for name, key in _stored(names or []).items()}
    given: dict[str, Any] = {}
    if "component" in found.posterior.coords:
        given["component_names"] = found.posterior["component"].to_numpy().tolist()
    kind = Run
    if "known" in attributes:
        kind = Fit
        for name in ("released", "known"):
            given[name] = decoded(name, "constant_data")
    return kind(
        draws["position"] if names is None else positions,
        arrays("sample_stats").get("acceptance_rate"),
        PrivacyStatement(**statement),
        decoded("infos", "sample_stats"),
        configuration=json.loads(attributes["configuration"]),
        versions=json.loads(attributes["versions"]),
        **given,
    )


def _by_site(positions) -> list[tuple[str, Any]]:
    """The leaves of the positions and their names."""
    if hasattr(positions, "_asdict"):
        positions = positions._asdict()
    if isinstance(positions, Mapping) and jax.tree_util.all_leaves(positions.values()):
        return list(positions.items())
    leaves = jax.tree_util.tree_leaves_with_path(positions)
    return [(site_of(path), leaf) for path, leaf in leaves]


def _encoded(value, name: str, arrays: dict):
    """A pytree of NamedTuples and dicts in JSON; its arrays go into `arrays` by name.

    A name is the text that follows the tree's own in Python, ``"gradient['rho']"``.
    """
    if hasattr(value, "_asdict"):
        kind, dot = type(value), name and "."
        fields = {
            key: _encoded(part, f"{name}{dot}{key}", arrays)
            for key, part in value._asdict().items()
        }
        return {"class": f"{kind.__module__}:{kind.__qualname__}", "fields": fields}
    if isinstance(value, Mapping):
        return {
            "dict": {
                key: _encoded(part, f"{name}[{key!r}]", arrays)
                for key, part in value.items()
            }
        }
    if value is None or isinstance(value, bool | int | float | str):
        return value
    stored = _stored([name], arrays)[name]
    arrays[stored] = np.asarray(value)
    return {"array": stored, "shape": np.shape(value)}


def _stored(names, taken=()) -> dict[str, str]:
    """How the variables of these names are named in a netCDF file that has `taken`.

    A slash, which netCDF does not allow, becomes a dot, and an underscore follows where
    another variable has that name. Names without a slash are given first, so that it is
    not they that change.
    """
    stored: dict[str, str] = {}
    for name in sorted(names, key=lambda name: "/" in name):
        free = name.replace("/", ".")
        while free in taken or free in stored.values():
            free += "_"
        stored[name] = free
    return {name: stored[name] for name in names}


def _decoded(value, arrays: Mapping):
    """The pytree of `_encoded`. Classes that are not those of dpjax become dicts."""
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return arrays[value["array"]].reshape(value["shape"])
    parts = value.get("fields") or value["dict"]
    parts = {key: _decoded(part, arrays) for key, part in parts.items()}
    module, _, name = value.get("class", "").partition(":")
    if module.partition(".")[0] == "dpjax":
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and issubclass(kind, tuple):
            return kind(**parts)
    return parts
