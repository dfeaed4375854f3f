"""From a pipeline's steps to expressions and plans of Spark."""
