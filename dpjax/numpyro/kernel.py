"""Kernels of dpjax inside `numpyro.infer.MCMC`.

The budget is counted on the host while NumPyro's program runs. A chain calls the host
once for a block of steps, not for each step. A state carries the number of prepaid
steps that are left of its block, and a seal that shows whether the state was changed.
"""

import collections
import dataclasses
import json
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.custom_batching import custom_vmap
from numpyro.infer import mcmc
from numpyro.util import is_prng_key

from dpjax import privacy
from dpjax.algorithm import Algorithm, bernoulli
from dpjax.numpyro.fisher import initial_position
from dpjax.posterior import Posterior
from dpjax.privacy.budget import check_budget
from dpjax.privacy.events import repeat
from dpjax.privacy.validate import check_count
from dpjax.release.captured import constants
from dpjax.release.traced import function_of
from dpjax.runner.check import check_arguments, check_start, made, refuse_records
from dpjax.runner.hashes import digest, keyed
from dpjax.runner.program import arrays_of, check_algorithm
from dpjax.runner.statement import PrivacyStatement

__all__ = ["KernelState", "MCMCKernel"]

SEEDED = "the JAX key of MCMC.run: whoever knows it can undo the privacy"


MAX_BLOCK = 1024
"""The largest number of steps that a chain pays for at once."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KernelState:
    """State of a chain. All fields are public, except `rng_key` and `seal`.

    position
        The unconstrained position.
    kernel
        State of the dpjax algorithm.
    is_accepted
        Whether the last step moved.
    num_steps
        Number of steps made so far, all of them paid for.
    num_prepaid
        Number of further steps that are paid for.
    rng_key
        The secret key from which the prepaid steps draw. Each block of steps that a
        kernel pays for has a key of its own. If two blocks had the same key, their
        noise would be the same, and the difference of their results would be free of
        noise.
    seal
        The bits of `kernel`, `num_steps`, `num_prepaid` and `rng_key` as the last step
        left them, after a hash of the program and the records, as uint32. If a step
        finds other bits, the prepaid steps are void. The seal is secret.
    """

    position: Any
    kernel: Any
    is_accepted: jax.Array
    num_steps: jax.Array
    num_prepaid: jax.Array
    rng_key: jax.Array
    seal: jax.Array

    def _replace(self, **changes):
        """The state with `changes` and without prepaid steps.

        `MCMC.run` calls this method when it begins.
        """
        void = jnp.zeros_like(self.num_prepaid)
        return dataclasses.replace(self, **{"num_prepaid": void} | changes)


class MCMCKernel(mcmc.MCMCKernel):
    """A dpjax sampler within a budget, as a kernel for `numpyro.infer.MCMC`.

    Parameters
    ----------
    algorithm_fn
        ``posterior -> Algorithm``, as `dpjax.run` takes it.
    posterior
        The posterior to sample, with its data. `MCMC.run` takes no arguments but a key.
    budget
        Privacy budget of everything that is drawn with this kernel, and of `spent`.
    num_chains
        Number of chains that share the budget.
    spent
        Privacy events of earlier releases from the same records,
        ``[(event, count), ...]``, as ``Algorithm.privacy`` states them. This kernel may
        be chosen in view of those releases.

    Raises
    ------
    privacy.BudgetError
        If the budget does not pay for one step. `MCMC.run` raises it if it begins more
        chains than `num_chains` in all; to continue the chains that have begun, set
        ``mcmc.post_warmup_state = mcmc.last_state``.
    ValueError
        `MCMC.run` raises it if it is given data, or a key of another generator than
        threefry; if it is given fewer warm-up steps than the algorithm tunes for; or,
        like `dpjax.run`, if records reach the results of its program other than through
        a release.

    Notes
    -----
    `dpjax.run` is faster and safer: NumPyro compiles the data into its program, draws
    its randomness from a JAX key and keeps no ledger. The keys and a hash of the
    records are in ``mcmc.last_state``. An `MCMC` object cannot be pickled, because the
    pickle would hold the records.

    *Formal guarantees.* Samples, and extra fields other than ``rng_key`` and ``seal``,
    are released at the cost that the attribute ``statement`` gives. The kernel counts
    steps on the host, over all calls of `MCMC.run` and `MCMC.warmup`. A chain stops
    when it has made ``max_steps`` steps, and all chains stop when they have paid for
    ``num_chains * max_steps`` steps together. A chain that has stopped keeps its
    position and releases nothing more.

    A chain pays for a block of steps before it makes the first of them. A block has
    about a fiftieth of ``max_steps`` steps, at most 1024, because a call of the host
    takes as long as several steps. A block is void once the state was changed, and
    whenever `MCMC.run` starts from a state anew. So no step is made that was not paid
    for, and the steps that a call leaves of its last block are lost. If a state is
    passed to `sample` twice, the same step is made twice, because the key of the block
    and the number of steps determine the randomness.
    """

    # If a kernel had a model, ArviZ would run it, and store observations and
    # log-likelihoods.
    model = None

    def __init__(
        self,
        algorithm_fn: Callable[[Posterior], Algorithm],
        posterior: Posterior,
        *,
        budget: privacy.Budget,
        num_chains: int = 1,
        spent=(),
    ):
        check_arguments(algorithm_fn, posterior)
        check_budget(budget)
        num_chains = check_count("num_chains", num_chains)
        self._posterior = posterior
        self._algorithm_fn = algorithm_fn
        self._algorithm = made(algorithm_fn, posterior)
        self._num_chains, self._num_begun = num_chains, 0
        self._lock, self._blocks = threading.Lock(), collections.Counter()
        self._renew = _mapped_as_one(self._renew_blocks)
        # NumPyro does not call `init` for a resumed chain once this is set.
        self._sample_fn = None
        self._budget = budget
        self._step_events = self._algorithm.privacy(1, budget.neighboring_relation)
        events = repeat(self._step_events, num_chains)
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
        self._block = min(1 + self.max_steps // 50, MAX_BLOCK)
        paid = repeat(events, self.max_steps)
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
        # If NumPyro maps `init` over chains, by devices or by jax.vmap, the key is
        # traced, and this one call begins all chains.
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
        starts = jax.tree.map(jnp.asarray, init_params)
        if is_one:
            starts = jax.tree.map(lambda leaf: leaf[None], starts)
        if first == 0:
            self._trace(starts)
        else:
            check_start(self._algorithm_fn, self._algorithm, self._posterior, starts)
        begin = self._begin if is_one else jax.vmap(self._begin)
        return begin(init_params, rng_key)

    def _trace(self, starts):
        """Check the programs of all that a chain runs, and keep them.

        A function may read a variable that changes until NumPyro traces it again, so
        chains run the programs that were checked.
        """

        def outline(algorithm):
            relation = self._budget.neighboring_relation
            return algorithm.privacy(1, relation), algorithm.transition.laziness

        start = jax.tree.map(lambda leaf: leaf[0], starts)
        algorithm, algorithm_fn = self._algorithm, self._algorithm_fn
        self._init = _frozen(algorithm.init, start)
        held = constants(jax.make_jaxpr(self._init)(start), with_literals=False)
        refuse_records(held, self._posterior)
        constrain_fn = self._posterior.constrain_fn
        self._constrain = constrain_fn and _frozen(constrain_fn, start)
        info = jax.eval_shape(lambda: algorithm.transition.stay(self._init(start)))
        if not hasattr(info, "is_accepted"):
            raise ValueError(
                "MCMCKernel is for samplers that accept or reject: run others by "
                "dpjax.run"
            )
        if len(jax.tree.leaves(starts)[0]) > 1:
            check_algorithm(algorithm_fn, self._posterior, starts)
        first = jax.tree.map(lambda leaf: leaf[:1], starts)
        self._program = check_algorithm(algorithm_fn, self._posterior, first, outline)
        step, self._laziness = self._program.outline
        if step != self._step_events:
            raise ValueError(
                "algorithm_fn no longer makes the algorithm that the kernel charges "
                "for: make a new kernel"
            )
        self._words = self._identity(self._program.identity)

    def _identity(self, program: str) -> np.ndarray:
        """A hash of the program, its privacy events and the data, ``(8,)`` uint32."""
        step = [[event.to_json(), count] for event, count in self._step_events]
        read = arrays_of(self._algorithm_fn), self._posterior.data
        return np.frombuffer(
            keyed(digest(read), json.dumps([program, step]).encode()), np.uint32
        )

    def _begin(self, position, rng_key):
        kernel, not_moved = self._init(position), jnp.zeros((), bool)
        num_steps = num_prepaid = jnp.zeros((), int)
        return self._sealed(kernel, not_moved, num_steps, num_prepaid, rng_key)

    def _sealed(self, kernel, is_accepted, num_steps, num_prepaid, rng_key):
        rest = num_steps, num_prepaid, rng_key
        seal = self._words_of(kernel, *rest)
        return KernelState(kernel.position, kernel, is_accepted, *rest, seal)

    def _words_of(self, *read) -> jax.Array:
        """The hash of this kernel, followed by the bits of the arrays in `read`."""
        return jnp.concatenate([self._words, *map(_bits, jax.tree.leaves(read))])

    def sample(self, state, model_args, model_kwargs):
        if is_prng_key(state.rng_key):
            return self._step(state)
        return jax.vmap(self._step)(state)

    def _step(self, state):
        if (generator := jax.random.key_impl(state.rng_key)) != "threefry2x32":
            raise ValueError(
                f"with keys of the generator {generator!r}, JAX draws the numbers of "
                "all chains from the key of the first, so two kernels could have the "
                "same noise: take jax.random.key(.., impl='threefry2x32')"
            )
        rest = state.num_steps, state.num_prepaid, state.rng_key
        words = self._words_of(state.kernel, *rest)
        is_void = (state.num_prepaid == 0) | jnp.any(words != state.seal)
        block = jnp.clip(self.max_steps - state.num_steps, 0, self._block)
        wanted = jnp.where(is_void, block, 0)
        num_prepaid, rng_key = self._renew(
            is_void, wanted, words, state.num_prepaid, jax.random.clone(state.rng_key)
        )
        is_paid = num_prepaid > 0
        draw = jax.random.fold_in(rng_key, state.num_steps)
        kernel, is_accepted = self._moved(draw, state.kernel)
        kernel = jax.tree.map(partial(jnp.where, is_paid), kernel, state.kernel)
        return self._sealed(
            kernel,
            is_accepted & is_paid,
            state.num_steps + is_paid,
            num_prepaid - is_paid,
            jax.random.clone(rng_key),
        )

    def _moved(self, rng_key, kernel):
        """The state of the kernel after a step, and whether the step moved it."""
        num_words = 2 + self._program.num_words
        words = jax.random.bits(rng_key, (num_words,), jnp.uint32)
        active = bernoulli(words[:2], self._laziness)
        chains = jax.tree.map(lambda leaf: leaf[None], (kernel, jnp.int32(0)))
        (moved, num_accepted), _ = self._program.evaluate(
            chains, words[None, None, 2:], active[None, None]
        )
        return jax.tree.map(lambda leaf: leaf[0], (moved, num_accepted > 0))

    def _renew_blocks(self, is_void, wanted, words, num_prepaid, rng_key):
        """The number of prepaid steps and the key of each chain.

        They are new where `is_void`, and those that are passed elsewhere. All arguments
        have the axes of `is_void` as their leading axes: one for each `jax.vmap` over
        chains.
        """
        mix, choose = _folded, _choose
        for _ in is_void.shape:
            mix, choose = jax.vmap(mix), jax.vmap(choose)

        def pay():
            mixed = mix(rng_key, words)
            count = jax.ShapeDtypeStruct(wanted.shape, wanted.dtype)
            # With an `io_callback` in place of the pure one, a step of the loop takes
            # 3 us more. One pure call may serve several chains with equal states, which
            # then make the same steps.
            num_paid, number = jax.pure_callback(
                self._pay, (count, count), wanted, jax.random.key_data(mixed)
            )
            return choose(is_void, num_paid, mixed, number, num_prepaid, rng_key)

        return lax.cond(jnp.any(is_void), pay, lambda: (num_prepaid, rng_key))

    def _pay(self, wanted, keys):
        """Pay for blocks of up to `wanted` steps, on the host.

        Parameters
        ----------
        wanted
            Number of steps that each chain asks for; zero if its block is not void.
        keys
            Words of each chain's key, with one more axis than `wanted`.

        Returns
        -------
        The number of steps that were paid for, and the number of blocks that were paid
        for under the same key before, each of the shape of `wanted`. Both depend on no
        data.
        """
        wanted, keys = np.asarray(wanted), np.asarray(keys)
        num_paid, number = np.zeros_like(wanted), np.zeros_like(wanted)
        with self._lock:
            for chain in np.ndindex(wanted.shape):
                num_paid[chain] = min(wanted[chain], self._num_left)
                self._num_left -= int(num_paid[chain])
                key = keys[chain].tobytes()
                number[chain] = self._blocks[key]
                self._blocks[key] += bool(num_paid[chain])
        return num_paid, number

    def postprocess_fn(self, model_args, model_kwargs):
        return self._constrain or super().postprocess_fn((), {})

    def get_diagnostics_str(self, state):
        return f"{state.num_steps} of {self.max_steps} steps paid for"

    def __reduce__(self):
        raise TypeError(
            "a kernel holds the private records and is not pickled; keep "
            "mcmc.get_samples() instead"
        )


def _frozen(function: Callable, *arguments) -> Callable:
    """`function` as it is now, for arguments of the shapes of these."""
    return function_of(*jax.make_jaxpr(function, return_shape=True)(*arguments))


def _choose(is_void, num_paid, mixed, number, num_prepaid, rng_key):
    """One chain's number of prepaid steps and key: those of a new block if `is_void`.

    The key of the new block is `mixed`, folded with the `number` of earlier blocks.
    """
    key = jax.random.fold_in(mixed, number)
    return (
        jnp.where(is_void, num_paid, num_prepaid),
        jnp.where(is_void, key, jax.random.clone(rng_key)),
    )


def _bits(leaf) -> jax.Array:
    """An array's contents as uint32, ``(words,)``."""
    # JAX's check of key reuse would take this for a second use of the key. It takes a
    # clone for another key.
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(jax.random.clone(leaf))
    is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
    wide = jnp.promote_types(leaf.dtype, jnp.float32 if is_float else jnp.uint32)
    return lax.bitcast_convert_type(leaf.astype(wide), jnp.uint32).ravel()


def _mapped_as_one(function: Callable) -> Callable:
    """Let `jax.vmap` call `function` once, with the arrays of all chains.

    `function` takes arrays with any number of leading axes, and contains a `lax.cond`.
    `jax.vmap` would otherwise turn this into a select, for which both branches run at
    every step.
    """
    mapped = custom_vmap(function)

    @mapped.def_vmap
    def rule(size, is_mapped, *arrays):
        arrays = [
            leaf if given else jnp.broadcast_to(leaf, (size, *leaf.shape))
            for leaf, given in zip(arrays, is_mapped, strict=True)
        ]
        return mapped(*arrays), (True, True)

    return mapped


def _folded(key, words):
    """The key, folded with each of the words in turn."""
    key, _ = lax.scan(
        lambda key, word: (jax.random.fold_in(key, word), None), key, words
    )
    return key
