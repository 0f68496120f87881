"""Methods for min_x f(x, y*(x)) with y*(x) = argmin_y g(x, y)."""
