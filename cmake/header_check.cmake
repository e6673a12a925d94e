# Every header compiles alone as C++, and those with host and device code (GPU4FS_FN) as CUDA.
# Not part of the default build; ninja gpu4fs_header_check
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
  ${PROJECT_SOURCE_DIR}/src/*.hpp ${PROJECT_SOURCE_DIR}/src/*.h
  ${PROJECT_SOURCE_DIR}/include/*.hpp ${PROJECT_SOURCE_DIR}/include/*.h)
if(GPU4FS_CUDA)
  file(GLOB_RECURSE cuda_headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
    ${PROJECT_SOURCE_DIR}/src/*.cuh ${PROJECT_SOURCE_DIR}/include/*.cuh)
endif()

# The first include of another header is compiled alone there: nothing is before it.
set(first_includes)
foreach(header IN LISTS headers)
  string(REGEX REPLACE "^(src|include)/" "" include_name ${header})
  file(STRINGS ${PROJECT_SOURCE_DIR}/${header} includes REGEX "^#include")
  if("${includes}" MATCHES "^#include \"([^\"]*)\"")
    list(APPEND first_includes "${CMAKE_MATCH_1}")
  endif()
  list(FILTER includes INCLUDE REGEX "\"")
  list(TRANSFORM includes REPLACE "^#include \"(.*)\".*" "\\1" OUTPUT_VARIABLE includes_of_${include_name})
endforeach()

# Headers that many others include, the longest to compile first, are precompiled for these. For a header that includes
# one of them anyway, the check is not weaker; the headers named here are compiled without.
set(precompiled_headers device/stack/stack_spec.hpp engine/engine_host.hpp fs/pages/change.hpp base/xxh3.hpp)
list(REMOVE_ITEM first_includes ${precompiled_headers})

# Sets `result` to whether `header` is or includes `wanted`, also indirectly.
function(gpu4fs_header_includes header wanted result)
  set(passed)
  set(left ${header})
  while(left)
    if(wanted IN_LIST left)
      set(${result} TRUE PARENT_SCOPE)
      return()
    endif()
    list(APPEND passed ${left})
    set(next)
    foreach(one IN LISTS left)
      list(APPEND next ${includes_of_${one}})
    endforeach()
    list(REMOVE_DUPLICATES next)
    list(REMOVE_ITEM next ${passed})
    set(left ${next})
  endwhile()
  set(${result} FALSE PARENT_SCOPE)
endfunction()

# Sets `result` to the precompiled header for the check of `header`, or "none".
function(gpu4fs_precompiled_for header result)
  set(${result} none PARENT_SCOPE)
  if(header IN_LIST precompiled_headers)
    return()
  endif()
  foreach(precompiled IN LISTS precompiled_headers)
    gpu4fs_header_includes(${header} ${precompiled} is_included)
    if(is_included)
      set(${result} ${precompiled} PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

set(check_stamps)
set(cuda_check_text)
foreach(header IN LISTS headers cuda_headers)
  string(REGEX REPLACE "^(src|include)/" "" include_name ${header})
  string(MAKE_C_IDENTIFIER ${header} name)
  if(NOT header MATCHES "cuh$")
    if(NOT include_name IN_LIST first_includes)
      file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/header_check/${name}.cpp CONTENT "#include \"${include_name}\"\n")
      gpu4fs_precompiled_for(${include_name} precompiled)
      list(APPEND check_sources_${precompiled} ${PROJECT_BINARY_DIR}/header_check/${name}.cpp)
    endif()
    file(STRINGS ${PROJECT_SOURCE_DIR}/${header} is_host_device REGEX "GPU4FS_FN" LIMIT_COUNT 1)
    if(NOT GPU4FS_CUDA OR NOT is_host_device OR header MATCHES "emulated")
      continue()
    endif()
  endif()
  string(APPEND cuda_check_text "#include \"${include_name}\"\n")
endforeach()
if(cuda_check_text)
  # All headers are in one file, because the C++ check finds missing includes. Only the device half is compiled (-ptx):
  # the C++ check compiles the host half.
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
foreach(precompiled IN LISTS precompiled_headers ITEMS none)
  string(MAKE_C_IDENTIFIER ${precompiled} name)
  set(target gpu4fs_header_check_${name})
  if(NOT check_sources_${precompiled})
    continue()
  endif()
  add_library(${target} OBJECT EXCLUDE_FROM_ALL ${check_sources_${precompiled}})
  target_compile_options(${target} PRIVATE -O0 -g0)
  set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
  target_link_libraries(${target} PRIVATE gpu4fs_strict_warnings gpu4fs_options)
  foreach(library IN ITEMS gpu4fs_fuse3 gpu4fs_cudart CLI11::CLI11)
    if(TARGET ${library})
      target_link_libraries(${target} PRIVATE ${library})
    endif()
  endforeach()
  if(NOT precompiled STREQUAL "none")
    target_precompile_headers(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src/${precompiled})
  endif()
  add_dependencies(gpu4fs_header_check ${target})
endforeach()
