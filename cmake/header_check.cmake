# Every header compiles alone: as C++, and as CUDA if it holds host and device code (GPU4FS_FN).
# Not part of the default build; ninja gpu4fs_header_check
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
  ${PROJECT_SOURCE_DIR}/src/*.hpp ${PROJECT_SOURCE_DIR}/src/*.h
  ${PROJECT_SOURCE_DIR}/include/*.hpp ${PROJECT_SOURCE_DIR}/include/*.h)
if(GPU4FS_CUDA)
  file(GLOB_RECURSE cuda_headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
    ${PROJECT_SOURCE_DIR}/src/*.cuh ${PROJECT_SOURCE_DIR}/include/*.cuh)
endif()

set(check_sources)
set(check_stamps)
foreach(header IN LISTS headers cuda_headers)
  string(REGEX REPLACE "^(src|include)/" "" include_name ${header})
  string(MAKE_C_IDENTIFIER ${header} name)
  set(check_source ${PROJECT_BINARY_DIR}/header_check/${name})
  if(NOT header MATCHES "cuh$")
    file(CONFIGURE OUTPUT ${check_source}.cpp CONTENT "#include \"${include_name}\"\n")
    list(APPEND check_sources ${check_source}.cpp)
    file(STRINGS ${PROJECT_SOURCE_DIR}/${header} is_host_device REGEX "GPU4FS_FN" LIMIT_COUNT 1)
    if(NOT GPU4FS_CUDA OR NOT is_host_device OR header MATCHES "emulated")
      continue()
    endif()
  endif()
  file(CONFIGURE OUTPUT ${check_source}.cu CONTENT "#include \"${include_name}\"\n")
  # The device half only (-ptx): the host half is what the C++ check compiles.
  add_custom_command(OUTPUT ${check_source}.ptx
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/run_nvcc.py ${check_source}.ptxas
      ${GPU4FS_NVCC} ${GPU4FS_NVCC_FLAGS} -MD -MF ${check_source}.d
      -ptx ${check_source}.cu -o ${check_source}.ptx
    DEPENDS ${check_source}.cu DEPFILE ${check_source}.d
    COMMENT "Header alone as CUDA: ${include_name}"
    VERBATIM)
  list(APPEND check_stamps ${check_source}.ptx)
endforeach()

add_custom_target(gpu4fs_header_check DEPENDS ${check_stamps})
if(check_sources)
  add_library(gpu4fs_header_check_cpp OBJECT EXCLUDE_FROM_ALL ${check_sources})
  target_compile_options(gpu4fs_header_check_cpp PRIVATE -O0 -g0)
  target_link_libraries(gpu4fs_header_check_cpp PRIVATE gpu4fs_strict_warnings gpu4fs_options)
  foreach(library IN ITEMS gpu4fs_fuse3 gpu4fs_cudart CLI11::CLI11)
    if(TARGET ${library})
      target_link_libraries(gpu4fs_header_check_cpp PRIVATE ${library})
    endif()
  endforeach()
  add_dependencies(gpu4fs_header_check gpu4fs_header_check_cpp)
endif()
