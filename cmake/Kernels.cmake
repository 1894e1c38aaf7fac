# The kernels as one fatbin in the library, where nvcc is there. Nothing of CUDA is linked: the driver is found at run time, and
# without the fatbin copies go one range at a time.
if(NEVE_CUDA)
  find_program(NEVE_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATH_SUFFIXES bin)
endif()
if(NEVE_CUDA STREQUAL "REQUIRED" AND NOT NEVE_NVCC)
  message(FATAL_ERROR "this preset builds the kernels, and no nvcc was found: put CUDA's bin folder on PATH, or set CUDA_HOME")
endif()
if(NEVE_CUDA AND NEVE_NVCC)
  execute_process(COMMAND ${NEVE_NVCC} --list-gpu-arch OUTPUT_VARIABLE NEVE_KNOWN_ARCHITECTURES ERROR_QUIET)
  set(NEVE_FATBIN ${CMAKE_BINARY_DIR}/kernels/neve.fatbin)
  set(NEVE_ARCHITECTURES)
  foreach(ARCHITECTURE 80 90 100)
    if("${NEVE_KNOWN_ARCHITECTURES}" MATCHES "compute_${ARCHITECTURE}\n")   # an older nvcc does not know the newest
      list(APPEND NEVE_ARCHITECTURES -gencode arch=compute_${ARCHITECTURE},code=sm_${ARCHITECTURE})
    endif()
  endforeach()
  file(GLOB KERNEL_HEADERS CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/*.h)
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/kernels)
  # PTX of the oldest of them runs on those to come.
  add_custom_command(
    OUTPUT ${NEVE_FATBIN}
    COMMAND ${NEVE_NVCC} -std=c++20 -O3 --fatbin -I${CMAKE_SOURCE_DIR} ${NEVE_ARCHITECTURES}
            -gencode arch=compute_80,code=compute_80 -o ${NEVE_FATBIN} ${CMAKE_SOURCE_DIR}/kernels/launch.cu
    DEPENDS ${CMAKE_SOURCE_DIR}/kernels/launch.cu ${KERNEL_HEADERS}
    VERBATIM)
  set_source_files_properties(${CMAKE_SOURCE_DIR}/kernels/fatbin.cc PROPERTIES
    COMPILE_DEFINITIONS "NEVE_FATBIN_FILE=\"${NEVE_FATBIN}\"" OBJECT_DEPENDS ${NEVE_FATBIN})
endif()
