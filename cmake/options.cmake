# Compiler flags common to all targets, carried by the interface target gpu4fs_options.
set(GPU4FS_MARCH "x86-64-v2" CACHE STRING "Value of -march; 'native' binds the binary to this machine")
set(GPU4FS_SANITIZE "" CACHE STRING "Empty, address (with undefined), thread, or fuzzer (address for libFuzzer)")
set_property(CACHE GPU4FS_SANITIZE PROPERTY STRINGS "" address thread fuzzer)
option(GPU4FS_WERROR "Warnings are errors" ON)
option(GPU4FS_CUDA "Build the GPU engine with nvcc" OFF)
option(GPU4FS_CUDA_WHOLE_PROGRAM "Service kernel translated as one program: faster, and slow to build" OFF)
option(GPU4FS_MUTANTS "The environment can turn mutants on (src/base/mutant.hpp); for tests, never for a release" OFF)
option(GPU4FS_TRACE "Cycles of commands by phase, for gpu4fs bench trace; slower" OFF)
option(GPU4FS_CCACHE "Compile through ccache where it is installed" ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release or Debug" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -g1")
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g")

# Flags for the host compiler of nvcc as well.
set(GPU4FS_HOST_FLAGS -march=${GPU4FS_MARCH} -ffile-prefix-map=${PROJECT_SOURCE_DIR}/=)
if(GPU4FS_SANITIZE STREQUAL "address")
  # Left out of "undefined": checks that AddressSanitizer does anyway, at a third of the compile time.
  set(gpu4fs_sanitize_flags -fsanitize=address,undefined -fno-sanitize=null,vptr,object-size
    -fno-sanitize-recover=all)
elseif(GPU4FS_SANITIZE STREQUAL "fuzzer")
  set(gpu4fs_sanitize_flags -fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=all)
elseif(GPU4FS_SANITIZE STREQUAL "thread")
  set(gpu4fs_sanitize_flags -fsanitize=thread)
elseif(GPU4FS_SANITIZE)
  message(FATAL_ERROR "GPU4FS_SANITIZE must be empty, address, thread or fuzzer, not ${GPU4FS_SANITIZE}")
endif()
if(GPU4FS_SANITIZE)
  # Both the build and the run stay within the time of one CI job.
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -g1")
  if(GPU4FS_SANITIZE STREQUAL "address")
    # With its checks the largest units compile in 0.6 of the time with -Og; tests take a tenth longer. ThreadSanitizer
    # gains an eighth at most.
    set(CMAKE_CXX_FLAGS_RELEASE "-Og -g1")
  endif()
  list(APPEND GPU4FS_HOST_FLAGS ${gpu4fs_sanitize_flags} -fno-omit-frame-pointer)
endif()
if(GPU4FS_MUTANTS)
  if(GPU4FS_CUDA)
    message(FATAL_ERROR "GPU4FS_MUTANTS is for the CPU engine: device code has no mutants")
  endif()
  if(NOT GPU4FS_SANITIZE)
    set(CMAKE_CXX_FLAGS_RELEASE "-O1 -g1")
  endif()
  list(APPEND GPU4FS_HOST_FLAGS -DGPU4FS_MUTANTS=1)
endif()

if(GPU4FS_TRACE)
  add_compile_definitions(GPU4FS_TRACE=1)
endif()

if(GPU4FS_CUDA)
  set(GPU4FS_WITH_CUDA 1)
else()
  set(GPU4FS_WITH_CUDA 0)
endif()

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
if(fmt_VERSION VERSION_LESS 10)
  add_library(gpu4fs_fmt STATIC ${PROJECT_SOURCE_DIR}/cmake/fmt_static.cpp)
  target_compile_options(gpu4fs_fmt PRIVATE ${GPU4FS_HOST_FLAGS})
  target_link_options(gpu4fs_fmt INTERFACE ${gpu4fs_sanitize_flags})
else()  # The list of what is compiled is that of version 9.
  add_library(gpu4fs_fmt INTERFACE)
  target_link_libraries(gpu4fs_fmt INTERFACE fmt::fmt-header-only)
endif()
add_library(gpu4fs_options INTERFACE)
target_include_directories(gpu4fs_options INTERFACE
  ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
target_compile_options(gpu4fs_options INTERFACE ${GPU4FS_HOST_FLAGS})
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # The compiler collects its garbage from 1 GB on: this saves a seventh of the time of the largest units.
  target_compile_options(gpu4fs_options INTERFACE --param=ggc-min-heapsize=1000000)
endif()
target_compile_definitions(gpu4fs_options INTERFACE GPU4FS_VERSION="${PROJECT_VERSION}")
target_link_options(gpu4fs_options INTERFACE ${gpu4fs_sanitize_flags})
target_link_libraries(gpu4fs_options INTERFACE gpu4fs_fmt Threads::Threads)

add_library(gpu4fs_warnings INTERFACE)
target_compile_options(gpu4fs_warnings INTERFACE -Wall -Wextra -Wpedantic -Wshadow)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Flow analysis of g++ 12 and 13 reports these inside the standard library at -O3.
  target_compile_options(gpu4fs_warnings INTERFACE
    -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread -Wno-restrict
    -Wno-maybe-uninitialized -Wno-dangling-reference)
  if(GPU4FS_SANITIZE STREQUAL "thread")
    target_compile_options(gpu4fs_warnings INTERFACE -Wno-tsan)
  endif()
endif()
if(GPU4FS_WERROR)
  target_compile_options(gpu4fs_warnings INTERFACE -Werror)
endif()
add_library(gpu4fs_strict_warnings INTERFACE)
target_compile_options(gpu4fs_strict_warnings INTERFACE -Wconversion)
target_link_libraries(gpu4fs_strict_warnings INTERFACE gpu4fs_warnings)

# A portable program that needs only glibc at run time. Sanitizers need their shared libraries.
add_library(gpu4fs_portable INTERFACE)
if(NOT GPU4FS_SANITIZE)
  target_link_options(gpu4fs_portable INTERFACE -static-libstdc++ -static-libgcc)
endif()

find_program(GPU4FS_CCACHE_PROGRAM ccache)
if(GPU4FS_CCACHE AND GPU4FS_CCACHE_PROGRAM)
  # Without the working directory in the hash all build folders share their results.
  set(GPU4FS_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros ${GPU4FS_CCACHE_PROGRAM})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${GPU4FS_LAUNCHER})
endif()
