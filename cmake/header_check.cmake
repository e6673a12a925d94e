# Every header compiles alone as C++, and those with host and device code (GPU4FS_FN) as CUDA.
# Not part of the default build; ninja gpu4fs_header_check
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
  ${PROJECT_SOURCE_DIR}/src/*.hpp ${PROJECT_SOURCE_DIR}/src/*.h
  ${PROJECT_SOURCE_DIR}/include/*.hpp ${PROJECT_SOURCE_DIR}/include/*.h)
if(GPU4FS_CUDA)
  file(GLOB_RECURSE cuda_headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
    ${PROJECT_SOURCE_DIR}/src/*.cuh ${PROJECT_SOURCE_DIR}/include/*.cuh)
endif()

# Headers that many others include, the longest to compile first, each precompiled for those that include it anyway.
set(precompiled_headers session/engine_setup.hpp device/stack/stack_spec.hpp engine/engine_host.hpp
  fs/pages/change.hpp <functional>,<string>,<vector> <string>,<vector>)

# The plan is that of the last configuration: after a change of includes only `cmake` makes the check complete again.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
execute_process(COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/plan_header_check.py ${precompiled_headers}
  OUTPUT_VARIABLE plan OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
if(NOT GPU4FS_SANITIZE)
  gpu4fs_register_test(check.header_plan.canary source
    python3 ${PROJECT_SOURCE_DIR}/scripts/plan_header_check.py --self-test)
endif()
string(REPLACE "\n" ";" plan "${plan}")
foreach(unit IN LISTS plan)
  string(REPLACE " " ";" unit "${unit}")
  list(POP_FRONT unit precompiled)
  list(TRANSFORM unit REPLACE "(.+)" "#include \"\\1\"\n" OUTPUT_VARIABLE text)
  list(JOIN text "" text)
  list(GET unit -1 name)
  string(MAKE_C_IDENTIFIER ${name} name)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/header_check/${name}.cpp CONTENT "${text}")
  list(APPEND check_sources_${precompiled} ${PROJECT_BINARY_DIR}/header_check/${name}.cpp)
endforeach()

set(check_stamps)
set(cuda_check_text)
foreach(header IN LISTS headers cuda_headers)
  string(REGEX REPLACE "^(src|include)/" "" include_name ${header})
  if(NOT header MATCHES "cuh$")
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
list(LENGTH precompiled_headers count)
foreach(number RANGE ${count})
  if(number EQUAL count)
    set(number none)
  endif()
  if(NOT check_sources_${number})
    continue()
  endif()
  set(target gpu4fs_header_check_${number})
  add_library(${target} OBJECT EXCLUDE_FROM_ALL ${check_sources_${number}})
  target_compile_options(${target} PRIVATE -O0 -g0)
  set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
  target_link_libraries(${target} PRIVATE gpu4fs_strict_warnings gpu4fs_options)
  foreach(library IN ITEMS gpu4fs_fuse3 gpu4fs_uring gpu4fs_cudart CLI11::CLI11)
    if(TARGET ${library})
      target_link_libraries(${target} PRIVATE ${library})
    endif()
  endforeach()
  if(NOT number STREQUAL "none")
    list(GET precompiled_headers ${number} precompiled)
    string(REPLACE "," ";" precompiled "${precompiled}")
    list(TRANSFORM precompiled REPLACE "^[^<].*" "${PROJECT_SOURCE_DIR}/src/\\0")
    target_precompile_headers(${target} PRIVATE ${precompiled})
  endif()
  add_dependencies(gpu4fs_header_check ${target})
endforeach()
