"""`compare` puts two runs side by side."""

import numpy as np

from dpjax.runner.results import Run

__all__ = ["compare"]


def compare(first: Run, second: Run):
    """A table of the means and standard deviations of the components of two runs.

    It is computed from released draws alone, so it costs no budget. Components that
    only one of the runs has are left out.

    Parameters
    ----------
    first, second
        Runs, such as `dpjax.load` returns.

    Returns
    -------
    pandas.DataFrame
        One row for each component, with the means and sds of both runs, the difference
        of the means in units of the root mean square of the sds, and the ratio of the
        sds. Its ``attrs`` hold the privacy statement of each run, in one line.

    Raises
    ------
    ValueError
        If the runs have no component in common.
    """
    one, two = first.to_dataframe(), second.to_dataframe()
    names = [name for name in one if name in two]
    if not names:
        raise ValueError(
            f"the runs share no parameter: one has {next(iter(one))!r} and "
            f"{len(one.columns) - 1} more, the other {next(iter(two))!r} and "
            f"{len(two.columns) - 1} more. Compare runs of one model"
        )
    means = [frame[names].mean() for frame in (one, two)]
    sds = [frame[names].std() for frame in (one, two)]
    table = means[0].to_frame("mean 1")
    table["mean 2"], table["sd 1"], table["sd 2"] = means[1], *sds
    scale = np.sqrt((sds[0] ** 2 + sds[1] ** 2) / 2)
    table["difference (sds)"] = (means[1] - means[0]) / scale
    table["ratio of sds"] = sds[1] / sds[0]
    for number, run in enumerate((first, second), 1):
        table.attrs[f"run {number}"] = str(run.statement).splitlines()[0]
    return table
