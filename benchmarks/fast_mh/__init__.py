"""The experiments of DP-Fast MH (Zhang and Zhang 2023), with what they really cost."""
