# What `cmake --install BUILD [--prefix DIR] [--strip]` puts where (DESTDIR is honoured). Of the targets it needs `train` alone,
# which prints its own schema, man page and completions here.
#   bin/train
#   share/trireme/        scripts/ that start runs or take their metrics, configs/, data/ (recipes), config.schema.json
#   share/doc/trireme/    README.md, LICENSE
#   share/man/man1/train.1, and where bash, zsh and fish look for completions
install(TARGETS train RUNTIME)
set(trireme_data ${CMAKE_INSTALL_DATADIR}/trireme)
set(scripts run.sh run_with_restart.sh slurm.sbatch metrics_to_mlflow.py metrics_to_wandb.py)
list(TRANSFORM scripts PREPEND ${PROJECT_SOURCE_DIR}/scripts/)
install(PROGRAMS ${scripts} DESTINATION ${trireme_data}/scripts)
# Sourced by the others.
install(FILES ${PROJECT_SOURCE_DIR}/scripts/find_train.sh ${PROJECT_SOURCE_DIR}/scripts/forwarded.sh
        ${PROJECT_SOURCE_DIR}/scripts/token_files.sh
        DESTINATION ${trireme_data}/scripts)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/configs DESTINATION ${trireme_data})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/data DESTINATION ${trireme_data} USE_SOURCE_PERMISSIONS)
install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# trireme_install_printed(<destination> <file> <arguments of train>...): what train prints, as a file of that name.
function(trireme_install_printed destination file)
  string(JOIN " " command ${ARGN})
  install(CODE "
    set(printed \"${CMAKE_BINARY_DIR}/printed/${file}\")
    file(MAKE_DIRECTORY \"${CMAKE_BINARY_DIR}/printed\")
    execute_process(COMMAND \"$<TARGET_FILE:train>\" ${command} OUTPUT_FILE \"\${printed}\" ERROR_VARIABLE said
                    RESULT_VARIABLE failed)
    if(failed)
      message(FATAL_ERROR \"`train ${command}` ended with \${failed}, so ${file} is not installed. It said: \${said}\")
    endif()
    get_filename_component(destination \"${destination}\" ABSOLUTE BASE_DIR \"\${CMAKE_INSTALL_PREFIX}\")
    file(INSTALL DESTINATION \"\${destination}\" TYPE FILE FILES \"\${printed}\")")
endfunction()
trireme_install_printed(${trireme_data} config.schema.json schema)
trireme_install_printed(${CMAKE_INSTALL_MANDIR}/man1 train.1 man)
trireme_install_printed(${CMAKE_INSTALL_DATADIR}/bash-completion/completions train completion bash)
trireme_install_printed(${CMAKE_INSTALL_DATADIR}/zsh/site-functions _train completion zsh)
trireme_install_printed(${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d train.fish completion fish)
