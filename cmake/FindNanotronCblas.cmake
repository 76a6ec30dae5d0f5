# nanotron::cblas: <cblas.h> and its library, of any vendor; NANOTRON_BLAS_NAME for reports.
# BLA_VENDOR chooses the vendor as in CMake's FindBLAS: Arm, Arm_mp (Arm Performance Libraries: armpl_lp64, armpl_lp64_mp),
# NVPL, Intel10_64lp_seq, ... The headers of MKL, ArmPL and NVPL are presented as cblas.h.
if(NOT BLA_VENDOR AND NOT DEFINED ENV{BLA_VENDOR})
  # OpenBLAS first: the reference BLAS, which FindBLAS may otherwise take, is many times slower.
  set(BLA_VENDOR OpenBLAS)
  find_package(BLAS QUIET)
  unset(BLA_VENDOR)
endif()
if(NOT BLAS_FOUND)
  find_package(BLAS REQUIRED)
endif()
add_library(nanotron_cblas INTERFACE)
add_library(nanotron::cblas ALIAS nanotron_cblas)
target_link_libraries(nanotron_cblas INTERFACE ${BLAS_LINKER_FLAGS} ${BLAS_LIBRARIES}
  Threads::Threads)

set(_header "")
if("${BLAS_LIBRARIES}" MATCHES "mkl")
  set(_header mkl_cblas.h)
elseif("${BLAS_LIBRARIES}" MATCHES "armpl")
  set(_header armpl.h)
elseif("${BLAS_LIBRARIES}" MATCHES "nvpl")
  set(_header nvpl_blas_cblas.h)
endif()
if(_header)
  find_path(NANOTRON_CBLAS_INCLUDE_DIR ${_header} HINTS "$ENV{MKLROOT}/include" "$ENV{ARMPL_DIR}/include"
    PATH_SUFFIXES mkl)
  file(WRITE "${PROJECT_BINARY_DIR}/vendor/cblas.h" "#include <${_header}>\n")
  target_include_directories(nanotron_cblas SYSTEM INTERFACE "${PROJECT_BINARY_DIR}/vendor")
else()
  find_path(NANOTRON_CBLAS_INCLUDE_DIR cblas.h PATH_SUFFIXES openblas cblas atlas flexiblas)
endif()
if(NOT NANOTRON_CBLAS_INCLUDE_DIR)
  message(FATAL_ERROR "cblas.h ${_header} was not found beside ${BLAS_LIBRARIES} (Debian: libopenblas-dev). "
    "Set NANOTRON_CBLAS_INCLUDE_DIR to its folder.")
endif()
target_include_directories(nanotron_cblas SYSTEM INTERFACE "${NANOTRON_CBLAS_INCLUDE_DIR}")

include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_LIBRARIES ${BLAS_LINKER_FLAGS} ${BLAS_LIBRARIES} Threads::Threads)
set(_test "extern \"C\" double cblas_ddot(int, const double*, int, const double*, int);
int main() { double x = 1; return cblas_ddot(1, &x, 1, &x, 1) != 1; }")
check_cxx_source_compiles("${_test}" NANOTRON_BLAS_HAS_CBLAS)
if(NOT NANOTRON_BLAS_HAS_CBLAS)
  find_library(NANOTRON_CBLAS_LIBRARY cblas REQUIRED)
  target_link_libraries(nanotron_cblas INTERFACE "${NANOTRON_CBLAS_LIBRARY}")
endif()
unset(CMAKE_REQUIRED_LIBRARIES)
list(GET BLAS_LIBRARIES 0 _first)
get_filename_component(NANOTRON_BLAS_NAME "${_first}" NAME_WE)
message(STATUS "CBLAS: ${BLAS_LIBRARIES}")
set(NanotronCblas_FOUND TRUE)
