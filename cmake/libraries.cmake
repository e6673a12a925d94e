# Libraries from the distribution. A static archive is used if there is one.
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)

find_path(GPU4FS_FUSE_INCLUDE fuse_lowlevel.h PATH_SUFFIXES fuse3)
find_library(GPU4FS_FUSE_LIBRARY NAMES libfuse3.a fuse3)
if(GPU4FS_FUSE_INCLUDE AND GPU4FS_FUSE_LIBRARY)
  add_library(gpu4fs_fuse3 INTERFACE)
  target_include_directories(gpu4fs_fuse3 SYSTEM INTERFACE ${GPU4FS_FUSE_INCLUDE})
  target_link_libraries(gpu4fs_fuse3 INTERFACE
    ${GPU4FS_FUSE_LIBRARY} Threads::Threads ${CMAKE_DL_LIBS} rt)
endif()

find_library(GPU4FS_XXHASH_LIBRARY NAMES libxxhash.a xxhash)
find_library(GPU4FS_ISAL_LIBRARY NAMES libisal.a isal)

# The external libraries of each layer, found lazily, so one layer builds without the others.
function(gpu4fs_link_external layer target scope)
  if(layer STREQUAL "frontend")
    if(NOT TARGET gpu4fs_fuse3)
      message(FATAL_ERROR "libfuse3 with its headers is needed; 'make setup' installs it")
    endif()
    target_link_libraries(${target} ${scope} gpu4fs_fuse3)
  elseif(layer STREQUAL "base")
    target_link_libraries(${target} PRIVATE nlohmann_json::nlohmann_json)
  elseif(layer STREQUAL "cli")
    target_link_libraries(${target} PRIVATE CLI11::CLI11)
  endif()
endfunction()
