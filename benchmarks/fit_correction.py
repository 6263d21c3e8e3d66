"""Fit the correction of DP Barker: N(0, 2) plus a symmetric V_corr, nearly logistic.

Any symmetric V_corr is a limit of mixtures of pairs of points +-m, so the best one in
total variation is a linear program: least absolute deviation of the density, weights
non-negative and of sum one. Its optimum on a fine grid bounds what any V_corr can do
and sits on few points; those are then moved off the grid.

    python -m benchmarks.fit_correction
"""

import numpy as np
from scipy import optimize, sparse, stats

VARIANCE = 2.0
DENSITY_GRID = np.linspace(0.0, 40.0, 4001)


def pair_densities(points, values):
    """Density of N(0, 2) plus a fair choice of +-m, ``(values, points)``."""
    sd = VARIANCE**0.5
    return (
        stats.norm.pdf(values[:, None], points, sd)
        + stats.norm.pdf(values[:, None], -points, sd)
    ) / 2


def best_weights(points):
    """Weights of the pairs `points` that minimise the total variation, and that."""
    matrix = pair_densities(points, DENSITY_GRID)
    target = stats.logistic.pdf(DENSITY_GRID)
    size, count = matrix.shape
    spacing = np.full(size, DENSITY_GRID[1])
    spacing[[0, -1]] /= 2
    slack = -sparse.eye(size)
    solution = optimize.linprog(
        np.concatenate([np.zeros(count), spacing]),
        A_ub=sparse.vstack(
            [sparse.hstack([matrix, slack]), sparse.hstack([-matrix, slack])]
        ),
        b_ub=np.concatenate([target, -target]),
        A_eq=np.concatenate([np.ones(count), np.zeros(size)])[None],
        b_eq=[1.0],
    )
    # Half the integral over the line is the integral over the half-line.
    return solution.x[:count], solution.fun


def fit():
    """Points and weights of the pairs, their total variation, and the optimum's."""
    grid = np.arange(0.0, 14.0, 0.05)
    weights, optimum = best_weights(grid)
    used = weights > 1e-5
    points, clusters = grid[used], np.cumsum(np.diff(grid[used], prepend=0) > 0.3)
    start = [
        np.average(points[clusters == i], weights=weights[used][clusters == i])
        for i in range(1, clusters[-1] + 1)
    ]

    def distance(moved):
        return best_weights(np.concatenate([[0.0], np.abs(moved)]))[1]

    polished = optimize.minimize(
        distance, start, method="Nelder-Mead", options=dict(xatol=1e-4, fatol=1e-9)
    )
    points = np.round(np.concatenate([[0.0], polished.x]), 4)
    weights, total_variation = best_weights(points)
    return points, weights, total_variation, optimum


if __name__ == "__main__":
    points, weights, total_variation, optimum = fit()
    for point, weight in zip(points, weights, strict=True):
        print(f"+-{point:.4f}  weight of the pair {weight:.12f}")
    print(f"total variation {total_variation:.6f}, least possible {optimum:.6f}")
