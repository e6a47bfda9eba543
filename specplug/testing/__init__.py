"""The test kit: prove in your own CI that a proposer keeps the target's distribution."""
