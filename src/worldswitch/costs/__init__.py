"""What the things that the model counts cost, in time, and where each figure is from; the published measurements."""
