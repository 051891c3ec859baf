"""What the processor does: registers, exit reasons, instructions."""
