"""What the tests share: realistic data, stores of every kind, the oracle, and short-hands for pipelines."""
