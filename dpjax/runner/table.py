"""A data frame that prints all of its columns.

The module is imported where such a frame is made, because pandas is slow to import.
"""

import pandas

__all__ = ["Table"]


class Table(pandas.DataFrame):
    """A data frame whose print has all columns, however narrow the terminal.

    Of more rows than pandas's option ``display.max_rows`` it prints the first and the
    last.
    """

    @property
    def _constructor(self):
        return Table

    def __repr__(self) -> str:
        most = pandas.get_option("display.max_rows")
        return self.to_string(max_rows=most)
