// CUDA on the host: compiles a .cu file with a C++ compiler and runs it thread by thread (README.md).
// device.cuh includes this file where PAGED_HOST is defined.
#pragma once
#include "builtins.h"
#include "primitives.h"
