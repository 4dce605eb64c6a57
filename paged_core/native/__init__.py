"""Native kernels: compiling and running functions without Python. Attention plugins and the model build on it."""
