# nvcc in plain custom commands: CMake's own CUDA language needs a full toolkit, and the compiler from the PyPI wheels
# has no linker step of its own. g++ links with the static CUDA runtime.
if(NOT GPU4FS_CUDA)
  return()
endif()

set(GPU4FS_CUDA_ARCH "sm_90" CACHE STRING "Value of nvcc -arch")
execute_process(COMMAND ${PROJECT_SOURCE_DIR}/scripts/find_nvcc.sh
  OUTPUT_VARIABLE nvcc_found OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE nvcc_result)
if(NOT nvcc_result EQUAL 0)
  message(FATAL_ERROR "GPU4FS_CUDA is ON and there is no nvcc; 'make setup' installs one")
endif()
if(NOT nvcc_found STREQUAL "${GPU4FS_NVCC}")
  # Another toolkit than the last time: headers and runtime must come from it too.
  unset(GPU4FS_CUDA_INCLUDE CACHE)
  unset(GPU4FS_CUDART CACHE)
endif()
set(GPU4FS_NVCC ${nvcc_found} CACHE FILEPATH "The CUDA compiler" FORCE)
cmake_path(GET GPU4FS_NVCC PARENT_PATH cuda_root)
cmake_path(GET cuda_root PARENT_PATH cuda_root)
find_path(GPU4FS_CUDA_INCLUDE cuda_runtime_api.h REQUIRED NO_DEFAULT_PATH
  PATHS ${cuda_root}/include ${cuda_root}/targets/x86_64-linux/include /usr/include)
find_library(GPU4FS_CUDART libcudart_static.a REQUIRED NO_DEFAULT_PATH
  PATHS ${cuda_root}/lib ${cuda_root}/lib64 ${cuda_root}/targets/x86_64-linux/lib
  /usr/lib/x86_64-linux-gnu)
message(STATUS "CUDA compiler: ${GPU4FS_NVCC}")
# Of the toolkit; the tests read the machine code with it.
find_program(GPU4FS_CUOBJDUMP cuobjdump HINTS ${cuda_root}/bin)

find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(GPU4FS_NVCC_FLAGS -std=c++20 -arch=${GPU4FS_CUDA_ARCH} -O3 -lineinfo --expt-relaxed-constexpr
  -Xptxas -v -ccbin ${CMAKE_CXX_COMPILER} -Werror cross-execution-space-call
  -I ${PROJECT_SOURCE_DIR}/src -I ${PROJECT_SOURCE_DIR}/include
  -DGPU4FS_WITH_CUDA=1 -DGPU4FS_VERSION=\"${PROJECT_VERSION}\")
if(GPU4FS_TRACE)
  list(APPEND GPU4FS_NVCC_FLAGS -DGPU4FS_TRACE=1)
endif()
foreach(flag IN LISTS GPU4FS_HOST_FLAGS ITEMS -Wall -Wno-unknown-pragmas)
  list(APPEND GPU4FS_NVCC_FLAGS -Xcompiler ${flag})
endforeach()

# The runtime, for host sources that call it.
add_library(gpu4fs_cudart INTERFACE)
target_include_directories(gpu4fs_cudart SYSTEM INTERFACE ${GPU4FS_CUDA_INCLUDE})
target_link_libraries(gpu4fs_cudart INTERFACE ${GPU4FS_CUDART} ${CMAKE_DL_LIBS} Threads::Threads rt)

# Adds the command that makes one object file; its path is returned in `object_variable`. The report of ptxas about
# registers, stack and spills is in <object>.ptxas.
set_property(GLOBAL PROPERTY GPU4FS_PTXAS_REPORTS)
function(gpu4fs_compile_cuda source object_variable)
  cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE name)
  if(name MATCHES "^\\.\\.|^build/")
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_BINARY_DIR} OUTPUT_VARIABLE name)
  endif()
  set(object ${PROJECT_BINARY_DIR}/cuda/${name}.o)
  cmake_path(GET object PARENT_PATH folder)
  file(MAKE_DIRECTORY ${folder})
  add_custom_command(OUTPUT ${object}
    BYPRODUCTS ${object}.ptxas
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/run_nvcc.py ${object}.ptxas
      ${GPU4FS_LAUNCHER} ${GPU4FS_NVCC} ${GPU4FS_NVCC_FLAGS} ${ARGN}
      -MD -MF ${object}.d -c ${source} -o ${object}
    DEPENDS ${source} ${GPU4FS_NVCC} ${PROJECT_SOURCE_DIR}/scripts/run_nvcc.py
    DEPFILE ${object}.d
    COMMENT "Building CUDA object ${name}.o"
    VERBATIM)
  set_source_files_properties(${object} PROPERTIES GENERATED TRUE EXTERNAL_OBJECT TRUE)
  set(${object_variable} ${object} PARENT_SCOPE)
endfunction()

# Relocatable: ptxas translates function by function, in a twentieth of the time and a tenth of the memory of a whole
# program. Then functions do not know the kernel's launch bounds: 65,536 registers for 512 threads are 128 each.
set(gpu4fs_relocatable_flags -rdc=true -maxrregcount=128)

# Adds the command that links the device code of relocatable objects; the path of the result is returned in
# `object_variable`.
function(gpu4fs_link_device target object_variable)
  set(linked ${PROJECT_BINARY_DIR}/cuda/${target}_device_link.o)
  add_custom_command(OUTPUT ${linked}
    COMMAND ${GPU4FS_NVCC} -arch=${GPU4FS_CUDA_ARCH} -ccbin ${CMAKE_CXX_COMPILER} -dlink ${ARGN} -o ${linked}
    DEPENDS ${ARGN} COMMENT "Linking device code" VERBATIM)
  set_source_files_properties(${linked} PROPERTIES GENERATED TRUE EXTERNAL_OBJECT TRUE)
  set(${object_variable} ${linked} PARENT_SCOPE)
endfunction()

# All translation units with kernels of a layer, src/<layer>/**/*_cuda.cu, as one library, and the resource report
# <target>.ptxas.log.
function(gpu4fs_add_cuda_library target layer)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${layer}/*_cuda.cu)
  set(device_flags ${gpu4fs_relocatable_flags})
  if(GPU4FS_CUDA_WHOLE_PROGRAM)
    set(device_flags)
  endif()
  set(objects)
  set(reports)
  foreach(source IN LISTS sources)
    gpu4fs_compile_cuda(${source} object ${device_flags})
    list(APPEND objects ${object})
    list(APPEND reports ${object}.ptxas)
  endforeach()
  if(NOT GPU4FS_CUDA_WHOLE_PROGRAM)
    gpu4fs_link_device(${target} linked ${objects})
    list(APPEND objects ${linked})
  endif()
  # An archive that programs need only when they are linked. As a library of CMake's own it would delay the compilation
  # of every source above it until the service kernel is compiled, which takes minutes of one core.
  set(archive ${PROJECT_BINARY_DIR}/lib${target}.a)
  add_custom_command(OUTPUT ${archive}
    COMMAND ${CMAKE_COMMAND} -E rm -f ${archive}
    COMMAND ${CMAKE_AR} qcs ${archive} ${objects}
    DEPENDS ${objects} COMMENT "Collecting lib${target}.a" VERBATIM)
  add_custom_target(${target}_archive ALL DEPENDS ${archive})
  add_library(${target} STATIC IMPORTED GLOBAL)
  set_target_properties(${target} PROPERTIES IMPORTED_LOCATION ${archive}
    INTERFACE_LINK_LIBRARIES "gpu4fs_engine;gpu4fs_cudart")
  add_custom_command(OUTPUT ${PROJECT_BINARY_DIR}/${target}.ptxas.log
    COMMAND cat ${reports} > ${PROJECT_BINARY_DIR}/${target}.ptxas.log
    DEPENDS ${objects} COMMENT "Collecting ${target}.ptxas.log")
  add_custom_target(${target}_ptxas_log ALL DEPENDS ${PROJECT_BINARY_DIR}/${target}.ptxas.log)
endfunction()

# A test program from one file with its own main: a .cu with kernels of its own, or a .cpp without.
function(gpu4fs_add_cuda_program target source)
  if(source MATCHES "\\.cu$")
    gpu4fs_compile_cuda(${source} object -I ${PROJECT_SOURCE_DIR}/tests ${gpu4fs_relocatable_flags})
    gpu4fs_link_device(${target} linked ${object})
    add_executable(${target} ${object} ${linked})
    set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
  else()
    add_executable(${target} ${source})
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
    target_link_libraries(${target} PRIVATE gpu4fs_warnings)
    target_compile_options(${target} PRIVATE ${GPU4FS_TEST_FLAGS})
    target_precompile_headers(${target} REUSE_FROM gpu4fs_test_support)
  endif()
  target_link_libraries(${target} PRIVATE gpu4fs_fsck gpu4fs_client gpu4fs_cudart gpu4fs_portable)
  if(GPU4FS_XXHASH_LIBRARY)
    target_link_libraries(${target} PRIVATE ${GPU4FS_XXHASH_LIBRARY})
  endif()
endfunction()
