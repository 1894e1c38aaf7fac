# What `cmake --install` puts where. Relocatable: the command and the library find what they need beside themselves.
#   bin/neve                    the command
#   lib/libneve.so              the C API
#   include/neve/*.h            C (neve.h) and C++ headers
#   lib/cmake/neve/             find_package(neve): neve::neve_c
#   lib/pkgconfig/neve.pc       pkg-config neve
#   share/                      the manual page, completion for bash and zsh
# Within a Python wheel (SKBUILD) only the first two, inside the package.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

if(SKBUILD)
  set(NEVE_LIBDIR lib)
  # A wheel holds no links, so there is one file and it has the plain name.
  set_property(TARGET neve_c PROPERTY VERSION)
  set_property(TARGET neve_c PROPERTY SOVERSION)
else()
  set(NEVE_LIBDIR ${CMAKE_INSTALL_LIBDIR})
endif()

set_target_properties(neve_c PROPERTIES INSTALL_RPATH "\$ORIGIN")
install(TARGETS neve_c EXPORT neve_targets LIBRARY DESTINATION ${NEVE_LIBDIR} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(TARGET neve_cli)
  set_target_properties(neve_cli PROPERTIES INSTALL_RPATH "\$ORIGIN/../${NEVE_LIBDIR}")
  install(TARGETS neve_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

if(NOT SKBUILD)
  target_include_directories(neve_c INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/neve DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
  install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
  if(TARGET neve_cli)
    install(FILES ${CMAKE_SOURCE_DIR}/docs/neve.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
    install(FILES ${CMAKE_SOURCE_DIR}/src/cli/completion/neve.bash
            DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME neve)
    install(FILES ${CMAKE_SOURCE_DIR}/src/cli/completion/_neve DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
  endif()

  set(NEVE_CMAKEDIR ${NEVE_LIBDIR}/cmake/neve)
  install(EXPORT neve_targets NAMESPACE neve:: DESTINATION ${NEVE_CMAKEDIR} FILE neveTargets.cmake)
  configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/neveConfig.cmake.in ${CMAKE_BINARY_DIR}/neveConfig.cmake
                                INSTALL_DESTINATION ${NEVE_CMAKEDIR})
  write_basic_package_version_file(${CMAKE_BINARY_DIR}/neveConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${CMAKE_BINARY_DIR}/neveConfig.cmake ${CMAKE_BINARY_DIR}/neveConfigVersion.cmake DESTINATION ${NEVE_CMAKEDIR})

  # The prefix is where neve.pc lies, not where it was installed to: the tree may be moved.
  file(RELATIVE_PATH NEVE_PC_TO_PREFIX /${NEVE_LIBDIR}/pkgconfig /)
  string(REGEX REPLACE "/$" "" NEVE_PC_TO_PREFIX "${NEVE_PC_TO_PREFIX}")
  configure_file(${CMAKE_CURRENT_LIST_DIR}/neve.pc.in ${CMAKE_BINARY_DIR}/neve.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/neve.pc DESTINATION ${NEVE_LIBDIR}/pkgconfig)
endif()
