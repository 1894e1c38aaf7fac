//! Where libneve.so is: what `pkg-config --libs neve` says, or NEVE_PREFIX/lib.
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=NEVE_PREFIX");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    let folder = match std::env::var("NEVE_PREFIX") {
        Ok(prefix) => format!("{prefix}/lib"),
        Err(_) => {
            let output = Command::new("pkg-config").args(["--variable=libdir", "neve"]).output().expect("pkg-config, or NEVE_PREFIX");
            assert!(output.status.success(), "pkg-config does not know neve: set PKG_CONFIG_PATH or NEVE_PREFIX");
            String::from_utf8(output.stdout).unwrap().trim().to_string()
        }
    };
    println!("cargo:rustc-link-search=native={folder}");
    println!("cargo:rustc-link-lib=dylib=neve");
    println!("cargo:rustc-link-arg=-Wl,-rpath,{folder}");
}
