//! Flags that say where services find each other, and how etcd lets them in. The latter are what
//! `etcdctl` calls them, and come from its variables of the environment.

use std::path::PathBuf;

use foretoken_registry::{RegistryConfig, Secret};

use crate::failure::usage;

/// Where services find each other.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct RegistryArgs {
    /// Where services find each other: FILE, kubernetes:FILE or etcd://HOST:PORT/PREFIX
    #[arg(long, value_name = "REGISTRY")]
    registry: Option<RegistryConfig>,
    /// Certificates of the authorities of etcd's members; etcds:// without it: the system's
    #[arg(long, value_name = "FILE", env = "ETCDCTL_CACERT")]
    etcd_cacert: Option<PathBuf>,
    /// Certificate that is shown to etcd
    #[arg(long, value_name = "FILE", env = "ETCDCTL_CERT")]
    etcd_cert: Option<PathBuf>,
    /// Key of that certificate
    #[arg(long, value_name = "FILE", env = "ETCDCTL_KEY")]
    etcd_key: Option<PathBuf>,
    /// User of etcd, and the password unless that is given elsewhere
    #[arg(
        long,
        value_name = "NAME[:PASSWORD]",
        env = "ETCDCTL_USER",
        hide_env_values = true
    )]
    etcd_user: Option<String>,
    /// File with the password of that user
    #[arg(long, value_name = "FILE")]
    etcd_password_file: Option<PathBuf>,
    /// The password itself, which others on this machine can see if it is given as a flag
    #[arg(
        long,
        value_name = "PASSWORD",
        env = "ETCDCTL_PASSWORD",
        hide_env_values = true
    )]
    etcd_password: Option<String>,
}

impl RegistryArgs {
    /// The registry that flags and file together say.
    pub(crate) fn over(
        self,
        configured: Option<RegistryConfig>,
    ) -> anyhow::Result<Option<RegistryConfig>> {
        let Self {
            registry,
            etcd_cacert,
            etcd_cert,
            etcd_key,
            etcd_user,
            etcd_password_file,
            etcd_password,
        } = self;
        let mut registry = registry.or(configured);
        if let Some(RegistryConfig::Etcd(etcd)) = &mut registry {
            let replace =
                |old: &mut Option<PathBuf>, new: Option<PathBuf>| *old = new.or(old.take());
            replace(&mut etcd.cacert, etcd_cacert);
            replace(&mut etcd.cert, etcd_cert);
            replace(&mut etcd.key, etcd_key);
            replace(&mut etcd.password_file, etcd_password_file);
            if let Some(user) = etcd_user {
                let (user, password) = match user.split_once(':') {
                    Some((user, password)) => (user.to_owned(), Some(password.to_owned())),
                    None => (user, None),
                };
                etcd.user = Some(user);
                etcd.password = password.map(Secret).or(etcd.password.take());
            }
            etcd.password = etcd_password.map(Secret).or(etcd.password.take());
            etcd.check().map_err(|error| usage(error.to_string()))?;
        }
        Ok(registry)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        registry: RegistryArgs,
    }

    fn over(args: &[&str], configured: Option<&str>) -> Result<Option<RegistryConfig>, String> {
        let args = [&["test"], args].concat();
        let command = Command::try_parse_from(args).map_err(|error| error.to_string())?;
        let configured = configured.map(|text| text.parse().unwrap());
        let over = command.registry.over(configured);
        over.map_err(|error| error.to_string())
    }

    #[test]
    fn flags_go_before_the_file_and_say_how_etcd_lets_us_in() {
        let file = over(&[], Some("a.json")).unwrap().unwrap();
        assert_eq!(file, RegistryConfig::Static("a.json".into()));
        let flag = over(&["--registry=b.json"], Some("a.json"));
        assert_eq!(flag, Ok(Some(RegistryConfig::Static("b.json".into()))));
        let args = ["--etcd-user=root:a:b", "--registry=etcd://h:2379"];
        let Ok(Some(RegistryConfig::Etcd(etcd))) = over(&args, None) else {
            panic!("not etcd");
        };
        assert_eq!(etcd.user.as_deref(), Some("root"));
        assert_eq!(etcd.password, Some(Secret("a:b".into())));
    }

    #[test]
    fn what_cannot_be_meant_is_told() {
        let error = over(&["--registry=consul://h:1"], None).unwrap_err();
        assert!(error.contains("etcd://HOST:PORT/PREFIX"), "{error}");
        let args = ["--registry=etcd://h:2379", "--etcd-user=root"];
        let error = over(&args, None).unwrap_err();
        assert_eq!(error, "a password is missing: user is given");
        let args = ["--registry=etcds://h:2379", "--etcd-cacert=/nonexistent"];
        let error = over(&args, None).unwrap_err();
        assert!(error.contains("/nonexistent"), "{error}");
    }
}
