# Python for Windows as this machine can have it: the headers of an interpreter that runs here, with pyconfig.h of this
# folder, and an import library of the stable ABI. CMake's own module would take this machine's libraries.
# Python_EXECUTABLE, Python_VERSION, Python_INCLUDE_DIRS and Python_LIBRARIES are given.
string(REPLACE "." ";" numbers "${Python_VERSION}")
list(GET numbers 0 Python_VERSION_MAJOR)
list(GET numbers 1 Python_VERSION_MINOR)
set(Python_INTERPRETER_ID Python)
set(Python_FOUND TRUE)

add_executable(Python::Interpreter IMPORTED)
set_target_properties(Python::Interpreter PROPERTIES IMPORTED_LOCATION "${Python_EXECUTABLE}")
foreach(name Module SABIModule)
  add_library(Python::${name} INTERFACE IMPORTED)
  target_include_directories(Python::${name} INTERFACE "${Python_INCLUDE_DIRS}")
  target_link_libraries(Python::${name} INTERFACE "${Python_LIBRARIES}")
endforeach()
