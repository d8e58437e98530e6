"""Fast code and, for each kernel, its plain-MLX reference. Imports nothing else of mtrun."""
