/* Says which sources the library was built of: library.py takes no other. hatch_build.py gives the digest. */
const char elmokit_sources[] = ELMOKIT_SOURCES;
