"""Our own code, broken on purpose: each break must turn a test red (P2, proof of the proofs)."""
