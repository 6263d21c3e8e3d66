"""Numbers that the thesis printed, plotted, or counted with its code.

Medians over 20 chains are read off the vector data of figures 6.3 to 6.8, to .002;
steps are those of the thesis's own functions.
"""

import math

__all__ = ["CLIPPING", "CLIPPING_BOUNDS", "best", "gradient_clip", "median", "steps"]

_NAMES = ("hmc", "dpps", "dppa", "mdpps", "mdppa", "barker")
_EPSILONS = (1.0, 2.0, 4.0, 6.0)

_MMD = {
    "easy-2d": (
        (0.478, 0.320, 0.263, 0.163),
        (0.367, 0.342, 0.153, 0.122),
        (0.356, 0.260, 0.207, 0.127),
        (0.664, 0.651, 0.542, 0.466),
        (0.686, 0.636, 0.526, 0.427),
        (0.679, 0.632, 0.575, 0.432),
    ),
    "tempered-2d": (
        (0.389, 0.278, 0.202, 0.138),
        (0.494, 0.405, 0.316, 0.271),
        (0.467, 0.418, 0.277, 0.226),
        (0.512, 0.459, 0.415, 0.320),
        (0.502, 0.477, 0.349, 0.296),
        (0.404, 0.287, 0.349, 0.217),
    ),
    "easy-10d": (
        (0.715, 0.615, 0.520, 0.383),
        (0.663, 0.489, 0.334, 0.270),
        (0.707, 0.527, 0.373, 0.276),
        (0.779, 0.768, 0.748, 0.743),
        (math.nan, 0.772, 0.733, 0.724),
        (0.790, 0.752, 0.668, 0.651),
    ),
    "tempered-10d": (
        (0.333, 0.271, 0.270, 0.203),
        (0.475, 0.433, 0.326, 0.296),
        (0.531, 0.488, 0.412, 0.404),
        (0.702, 0.491, 0.427, 0.350),
        (0.591, 0.476, 0.407, 0.363),
        (0.549, 0.456, 0.278, 0.250),
    ),
    "gauss-30d": (
        (0.730, 0.687, 0.566, 0.412),
        (0.735, 0.658, 0.518, 0.394),
        (0.675, 0.570, 0.355, 0.227),
    ),
    "hard-2d": (
        (0.610, 0.595, 0.582, 0.577),
        (0.606, 0.577, 0.533, 0.526),
        (0.610, 0.595, 0.582, 0.561),
    ),
    "hard-gauss-2d": (
        (0.664, 0.631, 0.551, 0.505),
        (0.728, 0.671, 0.664, 0.720),
        (0.729, 0.695, 0.608, 0.605),
    ),
}
_CIRCLE_MEAN_ERROR = {"hmc": (1.301, 1.198, 0.914), "dpps": (1.413, 0.684, 1.008)}
_CIRCLE_EPSILONS = (0.5, 0.75, 1.0)

# At epsilon = 4; the circle's at 1.
_ACCEPTANCE = {
    "easy-2d": (0.639, 0.371, 0.560, 0.431, 0.623, 0.500),
    "tempered-2d": (0.762, 0.487, 0.613, 0.512, 0.519, 0.176),
    "easy-10d": (0.640, 0.317, 0.781, 0.373, 0.550, 0.490),
    "tempered-10d": (0.670, 0.326, 0.652, 0.220, 0.671, 0.185),
    "gauss-30d": (0.383, 0.297, 0.821),
    "hard-2d": (0.384, 0.367, 0.573),
    "hard-gauss-2d": (0.451, 0.446, 0.488),
}
_RATIO_CLIP = {
    "easy-2d": (0.002, 0.006, 0.005, 0.058, 0.061, 0.379),
    "tempered-2d": (0.035, 0.024, 0.091, 0.033, 0.062, 0.759),
    "easy-10d": (0.007, 0.032, 0.002, 0.001, 0.036, 0.905),
    "tempered-10d": (0.006, 0.011, 0.012, 0.056, 0.059, 0.688),
    "gauss-30d": (0.010, 0.002, 0.003),
    "hard-2d": (0.009, 0.034, 0.052),
    "hard-gauss-2d": (0.029, 0.043, 0.045),
    "circle": (0.0035, 0.007),
}
_GRADIENT_CLIP = {
    "easy-2d": 0.176,
    "tempered-2d": 0.345,
    "easy-10d": 0.389,
    "tempered-10d": 0.426,
    "gauss-30d": 0.156,
    "hard-2d": 0.570,
    "hard-gauss-2d": 0.359,
    "circle": 0.048,
}

CLIPPING = {
    "hmc easy-2d": (0.104, 0.059, 0.058, 0.060, 0.042, 0.038, 0.047, 0.034),
    "rwmh easy-2d": (0.196, 0.105, 0.087, 0.066, 0.061, 0.066, 0.053, 0.063),
    "hmc easy-10d": (0.205, 0.104, 0.056, 0.046, 0.032, 0.046, 0.054, 0.061),
    "rwmh easy-10d": (0.292, 0.221, 0.167, 0.115, 0.125, 0.104, 0.105, 0.110),
}
"""Median MMD of the clipping study (figure 6.2), under the thesis code's distance."""

CLIPPING_BOUNDS = (0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 1000.0)


def median(score: str, model: str, algorithm: str, epsilon: float) -> float:
    """The published median of a column of `sweep`, NaN where there is none."""
    if algorithm not in _NAMES:
        return math.nan
    column = _NAMES.index(algorithm)
    if score == "mmd_thesis" and model in _MMD and epsilon in _EPSILONS:
        rows = _MMD[model]
        if column < len(rows):
            return rows[column][_EPSILONS.index(epsilon)]
    if score == "mean_error" and model == "circle" and epsilon in _CIRCLE_EPSILONS:
        row = _CIRCLE_MEAN_ERROR.get(algorithm)
        return row[_CIRCLE_EPSILONS.index(epsilon)] if row else math.nan
    at_four = {"acceptance": _ACCEPTANCE, "ratio_clip": _RATIO_CLIP}
    if score in at_four and epsilon == (1.0 if model == "circle" else 4.0):
        row = at_four[score].get(model, ())
        return row[column] if column < len(row) else math.nan
    if score == "gradient_clip" and algorithm == "hmc":
        return gradient_clip(model, epsilon)
    return math.nan


def gradient_clip(model: str, epsilon: float) -> float:
    """The published share of clipped gradients (figure 6.8), at epsilon 4."""
    return (
        _GRADIENT_CLIP[model]
        if epsilon == (1.0 if model == "circle" else 4.0)
        else math.nan
    )


def best(model: str, epsilon: float) -> tuple[str, float]:
    """Name and score of the best published algorithm: MMD, on the circle mean error."""
    score = "mean_error" if model == "circle" else "mmd_thesis"
    medians = {name: median(score, model, name, epsilon) for name in _NAMES}
    known = {name: value for name, value in medians.items() if value == value}
    if not known:
        return "", math.nan
    name = min(known, key=lambda name: known[name])
    return name, known[name]


_MINIBATCH_STEPS = {
    ("easy-2d", "mdpps"): (0, 3, 130, 438, 828, 1289, 1817),
    ("easy-2d", "mdppa"): (0, 3, 130, 438, 828, 1289, 1817),
    ("easy-2d", "barker"): (27, 106, 433, 964, 1687, 2583, 3640),
    ("easy-10d", "mdpps"): (0, 7, 321, 1245, 2407, 3765, 5313),
    ("easy-10d", "mdppa"): (0, 1, 52, 506, 1347, 2362, 3508),
    ("easy-10d", "barker"): (30, 102, 417, 935, 1632, 2509, 3536),
    ("tempered-2d", "mdpps"): (40, 185, 697, 1468, 2465, 3662, 5039),
    ("tempered-2d", "mdppa"): (68, 264, 965, 2022, 3388, 5028, 6914),
    ("tempered-2d", "barker"): (27, 106, 433, 964, 1687, 2583, 3640),
    ("tempered-10d", "mdpps"): (0, 19, 462, 1273, 2279, 3475, 4848),
    ("tempered-10d", "mdppa"): (2, 75, 721, 1665, 2869, 4315, 5980),
    ("tempered-10d", "barker"): (30, 102, 417, 935, 1632, 2509, 3536),
}
_MINIBATCH_EPSILONS = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)


def steps(model: str, algorithm: str, epsilon: float) -> float:
    """Steps of the minibatch methods by the thesis's code; NaN where ours are the same.

    Minibatch penalty by the Fourier accountant, DP Barker by Renyi divergences.
    """
    row = _MINIBATCH_STEPS.get((model, algorithm))
    if row is None or epsilon not in _MINIBATCH_EPSILONS:
        return math.nan
    return row[_MINIBATCH_EPSILONS.index(epsilon)]
