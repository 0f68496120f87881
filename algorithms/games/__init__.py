"""Methods for minimax problems: the lower loss is minus the upper one."""
