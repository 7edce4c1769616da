# A plain install for C: header, versioned shared and static library, pkg-config file, CMake package.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set_target_properties(infc PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
install(TARGETS infc infc_static EXPORT infc LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS ${gpu_libraries} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/infc DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

file(RELATIVE_PATH up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /) # from the file to the prefix, so that the tree may move
configure_file(cmake/infc.pc.in infc.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/infc.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/infc)
install(EXPORT infc NAMESPACE infc:: FILE infc-targets.cmake DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/infc-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES cmake/infc-config.cmake ${PROJECT_BINARY_DIR}/infc-config-version.cmake DESTINATION ${package})
