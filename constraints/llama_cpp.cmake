# Read while llama.cpp is configured (CMAKE_PROJECT_llama_cpp_INCLUDE in the Makefile). Its common library serves its
# own programs alone; the Python package loads only libllama and libggml.
set(LLAMA_BUILD_COMMON OFF)
