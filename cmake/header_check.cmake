# Every header compiles alone as C++, and those with host and device code (GPU4FS_FN) as CUDA.
# Not part of the default build; ninja gpu4fs_header_check
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
  ${PROJECT_SOURCE_DIR}/src/*.hpp ${PROJECT_SOURCE_DIR}/src/*.h
  ${PROJECT_SOURCE_DIR}/include/*.hpp ${PROJECT_SOURCE_DIR}/include/*.h)
if(GPU4FS_CUDA)
  file(GLOB_RECURSE cuda_headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
    ${PROJECT_SOURCE_DIR}/src/*.cuh ${PROJECT_SOURCE_DIR}/include/*.cuh)
endif()

# What another header includes first is compiled alone there: nothing stands before it.
set(first_includes)
foreach(header IN LISTS headers)
  file(STRINGS ${PROJECT_SOURCE_DIR}/${header} first REGEX "^#include" LIMIT_COUNT 1)
  if(first MATCHES "^#include \"(.*)\"")
    list(APPEND first_includes "${CMAKE_MATCH_1}")
  endif()
endforeach()

set(check_sources)
set(check_stamps)
set(cuda_check_text)
foreach(header IN LISTS headers cuda_headers)
  string(REGEX REPLACE "^(src|include)/" "" include_name ${header})
  string(MAKE_C_IDENTIFIER ${header} name)
  if(NOT header MATCHES "cuh$")
    if(NOT include_name IN_LIST first_includes)
      file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/header_check/${name}.cpp CONTENT "#include \"${include_name}\"\n")
      list(APPEND check_sources ${PROJECT_BINARY_DIR}/header_check/${name}.cpp)
    endif()
    file(STRINGS ${PROJECT_SOURCE_DIR}/${header} is_host_device REGEX "GPU4FS_FN" LIMIT_COUNT 1)
    if(NOT GPU4FS_CUDA OR NOT is_host_device OR header MATCHES "emulated")
      continue()
    endif()
  endif()
  string(APPEND cuda_check_text "#include \"${include_name}\"\n")
endforeach()
if(cuda_check_text)
  # All in one file, since the C++ check finds what is not included, and the device half only (-ptx): the host half is
  # what the C++ check compiles.
  set(check_source ${PROJECT_BINARY_DIR}/header_check/cuda_headers)
  file(CONFIGURE OUTPUT ${check_source}.cu CONTENT "${cuda_check_text}")
  add_custom_command(OUTPUT ${check_source}.ptx
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/run_nvcc.py ${check_source}.ptxas
      ${GPU4FS_NVCC} ${GPU4FS_NVCC_FLAGS} -MD -MF ${check_source}.d
      -ptx ${check_source}.cu -o ${check_source}.ptx
    DEPENDS ${check_source}.cu DEPFILE ${check_source}.d
    COMMENT "Headers as CUDA"
    VERBATIM)
  list(APPEND check_stamps ${check_source}.ptx)
endif()

add_custom_target(gpu4fs_header_check DEPENDS ${check_stamps})
if(check_sources)
  add_library(gpu4fs_header_check_cpp OBJECT EXCLUDE_FROM_ALL ${check_sources})
  target_compile_options(gpu4fs_header_check_cpp PRIVATE -O0 -g0)
  set_target_properties(gpu4fs_header_check_cpp PROPERTIES UNITY_BUILD OFF)
  target_link_libraries(gpu4fs_header_check_cpp PRIVATE gpu4fs_strict_warnings gpu4fs_options)
  foreach(library IN ITEMS gpu4fs_fuse3 gpu4fs_cudart CLI11::CLI11)
    if(TARGET ${library})
      target_link_libraries(gpu4fs_header_check_cpp PRIVATE ${library})
    endif()
  endforeach()
  add_dependencies(gpu4fs_header_check gpu4fs_header_check_cpp)
endif()
