"""Reproducible experiments on 5D parallelism: every technique from scratch, every claim to a verdict."""
