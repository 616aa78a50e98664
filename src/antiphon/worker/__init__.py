"""Workers of a stage: they execute what the scheduler assigned, and never route (AR-INV-003)."""
