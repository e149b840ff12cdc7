//! `durable image`

use std::process::ExitCode;

use clap::Subcommand;
use hyper::Method;
use protocol::api::{ImageView, PullImage};

use super::{Outcome, World, bytes, percent, print_json, print_line};

/// Pull, list and remove images. `durable create --image oci:REF` pulls by itself what is not here.
///
/// Example: durable image pull oci:debian:12
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// List the images that are here, those used last first.
    Ls,
    /// Pull an image anew; sandboxes that exist stay on the one they have.
    Pull {
        /// `oci:REF`, `oci-archive:FILE` or `docker-archive:FILE`.
        image: String,
    },
    /// Remove an image that no sandbox stands on.
    Rm {
        /// Its digest, or the name that it was pulled under.
        image: String,
    },
}

pub(crate) async fn run(args: Args, world: &World) -> Outcome {
    match args.verb {
        Verb::Ls => {
            let views: Vec<ImageView> = world.client.get("/v1/images").await?;
            for view in &views {
                show(view, world)?;
            }
        }
        Verb::Pull { image } => {
            let ask = PullImage {
                image: super::create::image(&image)?,
            };
            let view: ImageView = world.client.call(Method::POST, "/v1/images", &ask).await?;
            show(&view, world)?;
        }
        Verb::Rm { image } => {
            let path = format!("/v1/images?image={}", percent(&image));
            world
                .client
                .call::<_, ()>(Method::DELETE, &path, &())
                .await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show(view: &ImageView, world: &World) -> Result<(), protocol::ApiError> {
    if world.json {
        return print_json(view);
    }
    let used = match view.used_by.len() {
        0 => String::new(),
        1 => "  used by 1 sandbox".to_owned(),
        n => format!("  used by {n} sandboxes"),
    };
    let digest: String = view.digest.chars().take(19).collect();
    print_line(&format!(
        "{digest}  {:>9}  {}{used}",
        bytes(view.size_bytes),
        view.references.join(" ")
    ));
    Ok(())
}
