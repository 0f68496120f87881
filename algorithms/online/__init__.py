"""Online bilevel methods: one step is one round, in which f_t and g_t are seen once."""
