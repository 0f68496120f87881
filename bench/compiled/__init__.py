"""Steps as graphs of tensor operations, of one run or of several lanes."""
