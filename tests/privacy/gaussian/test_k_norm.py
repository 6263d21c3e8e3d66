"""K-norm releases: the charged losses against integrals over radius and direction."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy import integrate, special, stats

from dpjax import privacy
from dpjax.privacy import composition
from dpjax.privacy.gaussian import conversions, k_norm
from tests.tiers import tiered

RATES = [(1, 0.7), (2, 1.5), (3, 0.2), (10, 4.0), (50, 9.0), (101, 3.0)]
"""Dimensions and rates."""


def release_of(dim, rate):
    return privacy.KNormRelease(math.sqrt(dim + 1) / rate, dim)


def true_delta(dim, rate, epsilon, shift=1.0):
    """P(L > epsilon) - e^epsilon Q(L > epsilon), L = rate (|x - v| - |x|), by radii.

    With x at the distance R of its centre, and c the cosine of its angle to v, the loss
    is above epsilon where c is small enough. Q is the image of P under x -> v - x.
    """
    moved = epsilon / rate
    law = stats.gamma(dim, scale=1 / rate)

    def below(cosine):
        """P(c <= cosine)."""
        if abs(cosine) >= 1 or dim == 1:
            return (1 + np.sign(cosine) * (abs(cosine) >= 1)) / 2
        return special.betainc((dim - 1) / 2, (dim - 1) / 2, (1 + cosine) / 2)

    def integrand(radius):
        centre = (shift**2 - moved**2) / (2 * radius * shift)
        of_p, of_q = below(centre - moved / shift), below(-centre - moved / shift)
        return (of_p - math.exp(epsilon) * of_q) * law.pdf(radius)

    # Both terms have corners where a cosine becomes 1 or -1.
    edges = [1e-300, (shift - moved) / 2, (shift + moved) / 2]
    edges = np.sort([*edges, *law.ppf([1e-4, 0.05, 0.5, 0.95]), law.isf(1e-18)])
    return math.fsum(
        integrate.quad(integrand, low, high, epsabs=1e-16, epsrel=1e-10)[0]
        for low, high in itertools.pairwise(edges)
    )


@pytest.mark.parametrize(("dim", "rate"), RATES)
def test_delta_is_that_of_the_law(dim, rate):
    event = release_of(dim, rate)
    for share in (0.0, 0.3, 0.6, 0.8):
        epsilon = share * rate
        claimed = privacy.delta([(event, 1)], epsilon, method="pld")
        assert claimed >= true_delta(dim, rate, epsilon) * (1 - 1e-9) - 1e-14
        # A rate that is 0.4 % higher costs more than is claimed.
        assert claimed < true_delta(dim, 1.004 * rate, epsilon) + 1e-12


@pytest.mark.parametrize("dim", [2, 10])
def test_shorter_shifts_cost_less(dim):
    deltas = [true_delta(dim, 3.0, 0.5, shift) for shift in (0.3, 0.6, 0.9, 1.0)]
    assert deltas == sorted(deltas) and deltas[0] >= 0


def bracketed_delta(dim, rate, mu, epsilon, size=1500):
    """Lower and upper delta beside a mu-GDP release: losses rounded in polar cells."""
    shares = (np.arange(size + 1) / size) ** 2 * 0.5
    shares = np.concatenate([shares, 1 - shares[-2::-1]])
    mass = np.diff(shares)
    radius = stats.gamma.ppf(shares, dim, scale=1 / rate)
    cosine = 1 - 2 * stats.beta.ppf(shares, (dim - 1) / 2, (dim - 1) / 2)[::-1]

    def loss(radius, cosine):
        root = np.sqrt(radius**2 + 2 * radius * cosine + 1)
        return rate * (2 * radius * cosine + 1) / (root + radius)

    with np.errstate(invalid="ignore"):
        lower = loss(radius[1:, None], cosine[:-1])
    lower[-1] = -rate
    upper = loss(radius[:-1, None], cosine[1:])
    joint = np.outer(mass, mass[::-1]).ravel()
    bounds = []
    for values, rounding in ((lower, np.floor), (upper, np.ceil)):
        cells = rounding(values.ravel() * 2048 / rate).astype(int)
        masses = np.bincount(cells - cells.min(), joint)
        levels = (cells.min() + np.arange(masses.size)) * rate / 2048
        kept = masses > 0
        left = epsilon - levels[kept]
        deltas = special.ndtr(mu / 2 - left / mu)
        deltas -= np.exp(left) * special.ndtr(-mu / 2 - left / mu)
        bounds.append(masses[kept] @ deltas)
    return bounds


@pytest.mark.parametrize(
    ("dim", "rate", "mu"), tiered([(3, 1.0, 0.1), (20, 4.0, 0.5)], [(20, 4.0, 0.5)])
)
def test_delta_beside_gaussian_releases(dim, rate, mu):
    gaussian = privacy.GaussianRelease(2**0.5 / mu)
    epsilon = 0.7 * rate
    claimed = privacy.delta([(gaussian, 2), (release_of(dim, rate), 1)], epsilon)
    assert claimed >= bracketed_delta(dim, rate, mu, epsilon)[0]
    assert claimed < bracketed_delta(dim, 1.004 * rate, mu, epsilon)[1]


@pytest.mark.parametrize(("dim", "rate"), RATES)
def test_renyi_divergences_are_the_closed_form(dim, rate):
    """The moments of the loss's density, with Bessel's I and K.

    E e^((a - 1) L) = (z/s)^v (z I_v(s) K_(v+1)(z) + z^2/s I_(v+1)(s) K_v(z)) with
    v = r/2 - 1, z = rate/2 and s = (2 a - 1) z.
    """
    orders = np.array([1.02, 1.5, 2.0, 7.0, 64.0, 1000.0])
    expected = []
    for order in orders:
        v, z = mpmath.mpf(dim) / 2 - 1, mpmath.mpf(rate) / 2
        s = (2 * order - 1) * z
        moment = z * mpmath.besseli(v, s) * mpmath.besselk(v + 1, z)
        moment += z**2 / s * mpmath.besseli(v + 1, s) * mpmath.besselk(v, z)
        log_moment = mpmath.log((z / s) ** v * moment)
        expected.append(float(log_moment / (order - 1)))
    found = composition.renyi_curve(release_of(dim, rate), orders)
    assert np.all(found >= np.array(expected) * (1 - 1e-12))
    np.testing.assert_allclose(found, expected, rtol=2e-3)


NOISE = {
    0.1: [0.51, 0.68, 0.82, 0.92, 0.96, 0.98],
    1.0: [0.44, 0.62, 0.77, 0.88, 0.94, 0.97],
    4.0: [0.39, 0.56, 0.71, 0.85, 0.92, 0.96],
    10.0: [0.34, 0.50, 0.66, 0.80, 0.89, 0.94],
}
"""Sd over that of a Gaussian release, for 1, 4, 10, 24, 50 and 100 dimensions. A tenth
of mu^2 is spent elsewhere, and delta is 1e-6. From an accountant that rounds losses up
in polar cells, which costs it up to .4 %."""


@pytest.mark.parametrize("epsilon", tiered(NOISE, [1.0]))
def test_noise_beside_that_of_a_gaussian_release(epsilon):
    mu = conversions.gdp_mu(epsilon, 1e-6)
    spent = privacy.GaussianRelease(1 / (mu * 0.1**0.5))
    gaussian = 1 / (mu * 0.9**0.5)
    for dim, expected in zip((1, 4, 10, 24, 50, 100), NOISE[epsilon], strict=True):
        found = privacy.calibrate(
            lambda noise, dim=dim: [(spent, 1), (privacy.KNormRelease(noise, dim), 1)],
            num_steps=1,
            epsilon=epsilon,
            delta=1e-6,
            bracket=(gaussian / 4, gaussian),
        )
        ratio = found / gaussian
        assert 0.996 * expected - 0.005 < ratio < expected + 0.005


@pytest.mark.parametrize("dim", [1, 2, 1000])
@pytest.mark.parametrize("noise", [1e-50, 1e-3, 0.1, 30.0, 1e6, 1e50])
def test_extremes(dim, noise):
    event = privacy.KNormRelease(noise, dim)
    epsilon = privacy.epsilon([(event, 3)], 1e-6)
    assert 0 <= epsilon <= 3.001 * event.rate
    assert (epsilon > 500) == (noise <= 1e-3)
    assert noise <= 0.1 or privacy.delta([(event, 1)], 1.001 * event.rate) == 0
    losses = k_norm.losses(event, event.rate / 100)
    assert losses.probabilities.sum() == pytest.approx(1, abs=1e-12)


def test_many_releases_cost_what_gaussian_releases_of_their_loss_do():
    """1000 small losses add up to a normal one, of the mean square of theirs."""
    event = release_of(6, 0.05)
    limit = 1 / math.sqrt(1000 * k_norm.mean_square(event))
    found = privacy.epsilon([(event, 1000)], 1e-6)
    expected = privacy.epsilon([(privacy.GaussianRelease(limit), 1)], 1e-6)
    assert found == pytest.approx(expected, rel=5e-3)


@pytest.mark.parametrize("event", [release_of(4, 0.5), privacy.PureRelease(0.05)])
def test_a_filter_takes_them(event):
    accepted = privacy.RdpFilter(2.0, 1e-6, [(event, 1)])
    count = 0
    while accepted.spend([(event, 1)]):
        count += 1
    alone = privacy.max_steps([(event, 1)], epsilon=2.0, delta=1e-6)
    assert alone / 2 < count <= alone
    gaussian = [(privacy.GaussianRelease(5.0), 1)]
    budget = privacy.Budget(2.0, 1e-6)
    rule = privacy.AdaptiveRule.of(gaussian, budget)
    after = rule.max_steps([(event, 1)], [gaussian], budget)
    assert (
        0
        < after
        <= privacy.max_steps([(event, 1)], epsilon=2.0, delta=1e-6, spent=gaussian)
    )


def test_bad_dimensions_raise():
    for dim in (0, 1.5, True, "1", None, 1001):
        with pytest.raises(ValueError, match="dim"):
            privacy.KNormRelease(1.0, dim)
