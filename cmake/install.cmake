# The files of `make install` and of the Debian package: programs, the names that mount(8) and its relatives call, man
# pages, completions for bash and zsh, the template of a systemd unit, and the manual.
include(GNUInstallDirs)

# Installing needs the two programs and does not build the tests.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)

install(TARGETS gpu4fs gpu4fs-bench RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
file(RELATIVE_PATH program_from_sbin ${CMAKE_INSTALL_FULL_SBINDIR} ${CMAKE_INSTALL_FULL_BINDIR}/gpu4fs)
set(GPU4FS_INSTALL_LINKS ${PROJECT_BINARY_DIR}/install_links)
file(MAKE_DIRECTORY ${GPU4FS_INSTALL_LINKS}/completion)
foreach(name IN LISTS GPU4FS_PROGRAM_NAMES)
  file(CREATE_LINK ${program_from_sbin} ${GPU4FS_INSTALL_LINKS}/${name} SYMBOLIC)
  install(FILES ${GPU4FS_INSTALL_LINKS}/${name} DESTINATION ${CMAKE_INSTALL_SBINDIR})
endforeach()

file(GLOB man_pages CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/packaging/man/*.8)
install(FILES ${man_pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man8)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs/manual/ DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES ${PROJECT_SOURCE_DIR}/packaging/debian/copyright DESTINATION ${CMAKE_INSTALL_DOCDIR})

# The program prints its own completions, so they name exactly the options that it has.
add_custom_command(TARGET gpu4fs POST_BUILD
  COMMAND gpu4fs completion bash > gpu4fs.bash
  COMMAND gpu4fs completion zsh > _gpu4fs
  WORKING_DIRECTORY ${PROJECT_BINARY_DIR} VERBATIM)
install(FILES ${PROJECT_BINARY_DIR}/gpu4fs.bash RENAME gpu4fs
  DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/bash-completion/completions)
install(FILES ${PROJECT_BINARY_DIR}/_gpu4fs DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/zsh/vendor-completions)
# bash loads a completion by the name of the command.
foreach(name IN LISTS GPU4FS_PROGRAM_NAMES)
  file(CREATE_LINK gpu4fs ${GPU4FS_INSTALL_LINKS}/completion/${name} SYMBOLIC)
  install(FILES ${GPU4FS_INSTALL_LINKS}/completion/${name}
    DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/bash-completion/completions)
endforeach()

install(FILES ${PROJECT_SOURCE_DIR}/packaging/systemd/gpu4fs@.service DESTINATION lib/systemd/system)

# `make package`: a Debian package of the same files.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME gpu4fs)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "the gpu4fs developers <gpu4fs@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "POSIX file system whose engine runs on the GPU")
set(CPACK_PACKAGE_DESCRIPTION "The engine walks directories, allocates, copies, and computes checksums and
parities in one GPU kernel, so that moving tens of gigabytes a second costs
no CPU cores. Without a GPU the same engine runs on CPU threads.
.
This package has the program, benchmarks, man pages and a systemd unit.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS fuse3)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS OFF)
include(CPack)
