# manual.cmake: the manual page attn(1) and the completions of shells, made by tools/manual from the
# options' tables of the program that was built, and where they are installed.
set(manual_folder ${PROJECT_BINARY_DIR}/manual)
function(attn_manual format file destination)
  add_custom_command(OUTPUT ${manual_folder}/${file}
    COMMAND ${PROJECT_SOURCE_DIR}/tools/manual ${format} $<TARGET_FILE:attn_cli>
      > ${manual_folder}/${file}
    DEPENDS attn_cli ${PROJECT_SOURCE_DIR}/tools/manual COMMENT "manual: ${file}" VERBATIM)
  set_property(GLOBAL APPEND PROPERTY attn_manuals ${manual_folder}/${file})
  install(FILES ${manual_folder}/${file} DESTINATION ${CMAKE_INSTALL_DATADIR}/${destination}
    COMPONENT program)
endfunction()
file(MAKE_DIRECTORY ${manual_folder})
attn_manual(man attn.1 man/man1)
set(manual_page "\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/man/man1/attn.1")
install(CODE "execute_process(COMMAND gzip -9nf \"${manual_page}\")" COMPONENT program)
attn_manual(bash attn bash-completion/completions)
attn_manual(zsh _attn zsh/vendor-completions)
attn_manual(fish attn.fish fish/vendor_completions.d)
get_property(attn_manuals GLOBAL PROPERTY attn_manuals)
add_custom_target(attn_manual_pages ALL DEPENDS ${attn_manuals})
