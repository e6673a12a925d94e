set(gpu4fs_tools_precompiled <fmt/format.h> <algorithm> <chrono> <filesystem> <functional> <map> <memory> <stdexcept>
  <string> <thread> <vector> ${PROJECT_SOURCE_DIR}/src/tools/verbs.hpp)
set(gpu4fs_bench_precompiled ${gpu4fs_tools_precompiled} ${PROJECT_SOURCE_DIR}/src/bench/client.hpp
  ${PROJECT_SOURCE_DIR}/src/bench/parts.hpp)
list(REMOVE_ITEM gpu4fs_bench_precompiled ${PROJECT_SOURCE_DIR}/src/tools/verbs.hpp)

# One library a layer, gpu4fs_<layer>, and the programs gpu4fs and gpu4fs-bench, whose main() is main.cpp of their
# layer.
foreach(layer IN LISTS GPU4FS_LAYERS)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${layer}/*.cpp)
  list(REMOVE_ITEM sources ${PROJECT_SOURCE_DIR}/src/${layer}/main.cpp)
  if(sources)
    add_library(gpu4fs_${layer} STATIC ${sources})
    set(scope PUBLIC)
    target_link_libraries(gpu4fs_${layer} PRIVATE gpu4fs_strict_warnings)
  else()
    add_library(gpu4fs_${layer} INTERFACE)
    set(scope INTERFACE)
  endif()
  if(layer MATCHES "^(cli|tools)$")
    # Options and reports; at -O3 each takes twice the time to compile.
    target_compile_options(gpu4fs_${layer} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
  if(layer MATCHES "^(tools|bench)$")
    # Every verb's file has its options and its run(), every measurement its sizes and limits.
    set_target_properties(gpu4fs_${layer} PROPERTIES UNITY_BUILD OFF)
  endif()
  if(layer MATCHES "^(tools|bench)$")
    # So what most of them include is parsed once.
    target_precompile_headers(gpu4fs_${layer} PRIVATE ${gpu4fs_${layer}_precompiled})
  endif()
  target_link_libraries(gpu4fs_${layer} ${scope} gpu4fs_options)
  foreach(lower IN LISTS GPU4FS_${layer}_INCLUDES)
    target_link_libraries(gpu4fs_${layer} ${scope} gpu4fs_${lower})
  endforeach()
  if(EXISTS ${PROJECT_SOURCE_DIR}/src/${layer})
    gpu4fs_link_external(${layer} gpu4fs_${layer} ${scope})
  endif()
endforeach()

# The part that differs with and without the GPU engine; all other objects are the same in both builds.
set_property(SOURCE ${PROJECT_SOURCE_DIR}/src/engine/engine_cuda_absent.cpp
  ${PROJECT_SOURCE_DIR}/src/tools/doctor.cpp ${PROJECT_SOURCE_DIR}/src/bench/limits.cpp
  ${PROJECT_SOURCE_DIR}/src/bench/nvme_threads.cpp
  PROPERTY COMPILE_DEFINITIONS GPU4FS_WITH_CUDA=${GPU4FS_WITH_CUDA})
set_property(SOURCE ${PROJECT_SOURCE_DIR}/src/tools/doctor.cpp ${PROJECT_SOURCE_DIR}/src/bench/limits.cpp
  ${PROJECT_SOURCE_DIR}/src/bench/nvme_threads.cpp
  PROPERTY SKIP_PRECOMPILE_HEADERS ON)

if(GPU4FS_CUDA)
  gpu4fs_add_cuda_library(gpu4fs_engine_cuda engine)
  target_link_libraries(gpu4fs_session PUBLIC gpu4fs_engine_cuda)
  gpu4fs_add_cuda_library(gpu4fs_bench_cuda bench)
  target_link_libraries(gpu4fs_bench PUBLIC gpu4fs_bench_cuda)
endif()

function(gpu4fs_add_program name layer)
  add_executable(${name} ${PROJECT_SOURCE_DIR}/src/${layer}/main.cpp)
  target_link_libraries(${name} PRIVATE gpu4fs_${layer} gpu4fs_strict_warnings gpu4fs_portable)
endfunction()

gpu4fs_add_program(gpu4fs tools)
gpu4fs_add_program(gpu4fs-bench bench)

# Names under which mount(8), umount(8), mkfs(8) and fsck(8) call the program. mount and umount look for theirs in
# /sbin, by the type of the mount.
set(GPU4FS_PROGRAM_NAMES mkfs.gpu4fs fsck.gpu4fs mount.gpu4fs umount.gpu4fs mount.fuse.gpu4fs umount.fuse.gpu4fs)
foreach(name IN LISTS GPU4FS_PROGRAM_NAMES)
  add_custom_command(TARGET gpu4fs POST_BUILD
    COMMAND ${CMAKE_COMMAND} -E create_symlink gpu4fs ${name}
    WORKING_DIRECTORY $<TARGET_FILE_DIR:gpu4fs>)
endforeach()
