"""The printed tables of the thesis reproduction (Raisa 2021), entry by entry."""

import math

import pytest

from dpjax import acceptance, privacy

EPSILONS = (0.5, 0.75, 1, 2, 3, 4, 5, 6)
ROWS = {
    "easy-2d dpps": (100_000, 0.1),
    "easy-2d dppa": (100_000, 0.1),
    "easy-10d dpps": (200_000, 0.1),
    "easy-10d dppa": (200_000, 0.1),
    "tempered-2d dpps": (100_000, 0.2),
    "tempered-2d dppa": (100_000, 0.2),
    "tempered-10d dpps": (200_000, 0.18),
    "tempered-10d dppa": (200_000, 0.1),
    "gauss-30d dpps": (200_000, 0.06),
    "gauss-30d dppa": (200_000, 0.2),
    "hard-2d dpps": (150_000, 0.2),
    "hard-2d dppa": (150_000, 0.1),
    "hard-gauss-2d dpps": (200_000, 0.07),
    "hard-gauss-2d dppa": (200_000, 0.1),
    "circle dpps": (100_000, 4.0),
    "circle dppa": (100_000, 4.0),
    "easy-2d hmc": (100_000, 0.1, 0.4, 10),
    "easy-10d hmc": (200_000, 0.05, 0.2, 10),
    "tempered-2d hmc": (100_000, 0.2, 0.6, 10),
    "tempered-10d hmc": (200_000, 0.08, 0.2, 10),
    "gauss-30d hmc": (200_000, 0.05, 0.1, 5),
    "hard-2d hmc": (150_000, 0.15, 0.25, 5),
    "hard-gauss-2d hmc": (200_000, 0.05, 0.2, 8),
    "circle hmc": (100_000, 0.6, 1.9, 40),
}
TIGHT = {
    "easy-2d dpps": (15, 32, 56, 201, 419, 702, 1041, 1431),
    "easy-2d dppa": (15, 32, 56, 201, 419, 702, 1041, 1431),
    "easy-2d hmc": (9, 19, 33, 119, 248, 416, 616, 848),
    "easy-10d dpps": (28, 61, 104, 378, 793, 1331, 1978, 2725),
    "easy-10d dppa": (28, 61, 104, 378, 793, 1331, 1978, 2725),
    "easy-10d hmc": (4, 9, 15, 56, 117, 197, 293, 403),
    "tempered-2d dpps": (61, 131, 224, 804, 1678, 2808, 4164, 5724),
    "tempered-2d dppa": (61, 131, 224, 804, 1678, 2808, 4164, 5724),
    "tempered-2d hmc": (27, 59, 100, 361, 755, 1263, 1874, 2576),
    "tempered-10d dpps": (92, 198, 340, 1227, 2570, 4313, 6411, 8830),
    "tempered-10d dppa": (28, 61, 104, 378, 793, 1331, 1978, 2725),
    "tempered-10d hmc": (6, 14, 24, 87, 183, 308, 458, 631),
    "gauss-30d dpps": (10, 22, 37, 136, 285, 479, 712, 981),
    "gauss-30d dppa": (114, 245, 419, 1514, 3173, 5325, 7915, 10901),
    "gauss-30d hmc": (2, 6, 10, 37, 79, 133, 197, 272),
    "hard-2d dpps": (88, 189, 323, 1164, 2435, 4081, 6061, 8341),
    "hard-2d dppa": (22, 47, 80, 291, 608, 1020, 1515, 2085),
    "hard-2d hmc": (15, 33, 57, 207, 433, 726, 1079, 1484),
    "hard-gauss-2d dpps": (14, 30, 51, 185, 388, 652, 969, 1335),
    "hard-gauss-2d dppa": (28, 61, 104, 378, 793, 1331, 1978, 2725),
    "hard-gauss-2d hmc": (4, 9, 16, 60, 126, 213, 316, 436),
    "circle dpps": (24643, 52511, 89646, 321606, 671279, 1123211, 1665805, 2289830),
    "circle dppa": (24643, 52511, 89646, 321606, 671279, 1123211, 1665805, 2289830),
    "circle hmc": (108, 232, 396, 1422, 2968, 4966, 7365, 10124),
}
ZCDP = {
    "easy-2d dpps": (8, 19, 34, 135, 294, 507, 770, 1079),
    "easy-2d dppa": (8, 19, 34, 135, 294, 507, 770, 1079),
    "easy-2d hmc": (5, 11, 20, 80, 174, 300, 456, 639),
    "circle dpps": (14220, 31716, 55900, 216236, 471244, 812593, 1233108, 1726554),
    "circle dppa": (14220, 31716, 55900, 216236, 471244, 812593, 1233108, 1726554),
    "circle hmc": (62, 140, 247, 956, 2083, 3592, 5452, 7634),
}
R_STAR = {
    100_000: (
        *(0.0077011681, 0.016409743, 0.028014482, 0.10050202),
        *(0.20977483, 0.35100365, 0.52056435, 0.71557196),
    ),
    150_000: (
        *(0.0073844629, 0.015764894, 0.026950377, 0.097018319),
        *(0.20294715, 0.3401423, 0.50513731, 0.69516084),
    ),
    200_000: (
        *(0.007174172, 0.015335518, 0.026240414, 0.094682199),
        *(0.19835389, 0.3328178, 0.49471358, 0.68134684),
    ),
}
R_Z = {
    100_000: (
        *(0.00444384, 0.00991152, 0.0174689, 0.0675739),
        *(0.147264, 0.253936, 0.385346, 0.539548),
    ),
    150_000: (
        *(0.00431931, 0.0096361, 0.0169875, 0.0657699),
        *(0.143448, 0.247539, 0.375895, 0.526645),
    ),
    200_000: (
        *(0.00423511, 0.00944978, 0.0166617, 0.0645473),
        *(0.140859, 0.243193, 0.369466, 0.517861),
    ),
}


def step_events(row):
    n, tau, *hmc = ROWS[row]
    events = [(privacy.GaussianRelease(tau * math.sqrt(n)), 1)]
    if hmc:
        tau_g, leapfrog_steps = hmc
        gradient = privacy.GaussianRelease(tau_g * math.sqrt(n))
        events.append((gradient, leapfrog_steps + 1))
    return events


def step_rho(row):
    n, tau, *hmc = ROWS[row]
    rho = 1 / (2 * tau**2 * n)
    return rho + ((hmc[1] + 1) / (2 * hmc[0] ** 2 * n) if hmc else 0.0)


@pytest.mark.parametrize("row", TIGHT)
def test_tight_counts(row):
    delta = 0.1 / ROWS[row][0]
    for method in ("gdp", "best"):
        counts = tuple(
            privacy.max_steps(
                step_events(row), epsilon=epsilon, delta=delta, method=method
            )
            for epsilon in EPSILONS
        )
        assert counts == TIGHT[row]


@pytest.mark.parametrize("row", ROWS)
def test_zcdp_counts(row):
    n = ROWS[row][0]
    counts = tuple(
        privacy.max_steps(
            step_events(row), epsilon=epsilon, delta=0.1 / n, method="zcdp"
        )
        for epsilon in EPSILONS
    )
    if row in ZCDP:
        assert counts == ZCDP[row]
    log_delta = -math.log(0.1 / n)
    for epsilon, count in zip(EPSILONS, counts, strict=True):
        limit = (math.sqrt(epsilon + log_delta) - math.sqrt(log_delta)) ** 2
        assert count == math.floor(limit / step_rho(row))


@pytest.mark.parametrize("n", R_STAR)
def test_budgets_in_zcdp_units(n):
    delta = 0.1 / n
    for epsilon, tight, plain in zip(EPSILONS, R_STAR[n], R_Z[n], strict=True):
        for method, rho, digits in (("gdp", tight, 7), ("zcdp", plain, 5)):
            event = privacy.GaussianRelease(1 / math.sqrt(2 * rho))
            found = privacy.epsilon([(event, 1)], delta, method)
            assert found == pytest.approx(epsilon, rel=10.0**-digits)


@pytest.mark.parametrize(
    ("count", "epsilon", "printed"),
    [
        (56, 1, "9.94690352e-07"),
        (57, 1, "1.19189575e-06"),
        (702, 4, "9.99867832e-07"),
        (703, 4, "1.01811984e-06"),
    ],
)
def test_delta_to_all_printed_digits(count, epsilon, printed):
    event = privacy.GaussianRelease(0.1 * math.sqrt(100_000))
    for method in ("gdp", "best"):
        assert f"{privacy.delta([(event, count)], epsilon, method):.8e}" == printed


def test_penalty_bits_by_the_gaussian_they_process():
    # accept_bit_accounting.md: sd 2, Delta 0.1, delta 1e-6.
    step = [(privacy.AcceptBit(acceptance.penalty(2.0), 0.1), 1)]
    counts = [
        privacy.max_steps(step, epsilon=epsilon, delta=1e-6, method="gdp")
        for epsilon in (1, 4)
    ]
    # The numerical error of the bits costs no whole step here.
    assert counts == [22, 280]
