"""The experiments of Raisa (2021), with their algorithms and ours."""
