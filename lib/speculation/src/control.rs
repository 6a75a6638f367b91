//! How many tokens to speculate on: numbers in, lookahead out.
