# Enables the CUDA language for this build, or says what is missing.
set(KDT_CUDA_ARCHS "90a-real;120a-real" CACHE STRING
    "CUDA architectures: 90a H100 and H200, 120a RTX PRO 6000 Blackwell")
set(CMAKE_CUDA_ARCHITECTURES ${KDT_CUDA_ARCHS})
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "KDT_CUDA=ON needs nvcc (CUDA 13) on PATH or in CUDACXX; without it, build "
                      "with KDT_CUDA=OFF")
endif()
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.0)
  message(FATAL_ERROR "KDT_CUDA=ON needs CUDA 13, found nvcc ${CMAKE_CUDA_COMPILER_VERSION}")
endif()

# CMake 3.25 does not know the C++20 flag of nvcc 13.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -DNDEBUG -lineinfo")
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
