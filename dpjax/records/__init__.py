"""Reading of the user's own records by a public schema: see `dpjax.records.schema`."""

from dpjax.records.schema import Column, Schema
from dpjax.records.template import template

__all__ = ["Column", "Schema", "template"]
