//! Images that have to be unpacked: found or pulled when a sandbox is created, kept as long as one stands on them.

use image::{Pulled, Source};
use protocol::api::ImageView;
use protocol::{ApiError, ErrorCode, Image, SandboxSpec};

use crate::engine::Engine;
use crate::error;
use crate::shared::Shared;

impl Engine {
    /// Pulls an image, whether or not it is here.
    ///
    /// # Errors
    /// `invalid` for what is no image, `unavailable` or `denied` as the registry says.
    pub async fn pull_image(&self, image: &Image) -> Result<ImageView, ApiError> {
        let source = source(image)?;
        let pulled = self.shared().images.pull(&source, |_| {}).await;
        let pulled = pulled.map_err(|e| of_image(&e))?;
        let listed = self.images().await?;
        let digest = pulled.digest.to_string();
        listed
            .into_iter()
            .find(|view| view.digest == digest)
            .ok_or_else(|| ApiError::new(ErrorCode::NotFound, format!("image {digest} is gone")))
    }

    /// Lists the images that are here, those used last first.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn images(&self) -> Result<Vec<ImageView>, ApiError> {
        let images = self.shared().images.clone();
        let listed = tokio::task::spawn_blocking(move || images.list())
            .await
            .map_err(|e| error::internal("the list was abandoned", &e))?
            .map_err(|e| of_image(&e))?;
        let users = self.image_users().await;
        Ok(listed
            .into_iter()
            .map(|image| {
                let digest = image.digest.to_string();
                let used_by = users.iter().filter(|(used, _)| *used == digest);
                ImageView {
                    used_by: used_by.map(|(_, name)| name.clone()).collect(),
                    digest,
                    references: image.references,
                    size_bytes: image.size_bytes,
                    created: image.created,
                }
            })
            .collect())
    }

    /// Removes an image, by its digest or by the name that it was pulled under.
    ///
    /// # Errors
    /// `not_found`; `conflict` while a sandbox stands on it.
    pub async fn remove_image(&self, text: &str) -> Result<(), ApiError> {
        if self.has_damaged() {
            let message = "a damaged sandbox may stand on any image";
            return Err(ApiError::new(ErrorCode::Conflict, message)
                .hint("`durable ps` shows it; repair or remove it first"));
        }
        // No sandbox is created on it meanwhile.
        let _alone = self.shared().unpacking.write().await;
        let digest = match text.parse() {
            Ok(digest) => digest,
            Err(_) => {
                let image: Image = text.parse().map_err(|e: protocol::IdError| {
                    ApiError::new(ErrorCode::Invalid, e.to_string())
                })?;
                let found = self.shared().images.find(&source(&image)?);
                let found = found.map_err(|e| of_image(&e))?;
                let gone =
                    || ApiError::new(ErrorCode::NotFound, format!("there is no image `{image}`"));
                found
                    .ok_or_else(|| gone().hint("`durable image ls` tells what there is"))?
                    .digest
            }
        };
        let users = self.image_users().await;
        let images = self.shared().images.clone();
        let removed = tokio::task::spawn_blocking(move || {
            images.remove(&digest, |digest| {
                let digest = digest.to_string();
                let users = users.into_iter().filter(|(used, _)| *used == digest);
                users.map(|(_, name)| name).collect()
            })
        });
        removed
            .await
            .map_err(|e| error::internal("the removal was abandoned", &e))?
            .map_err(|e| of_image(&e))
    }
}

/// Makes sure that the image of a new sandbox is here, and takes over what it says of how programs are started.
///
/// What the user said stands: the image only fills in what is missing.
pub(crate) async fn unpack(
    shared: &Shared,
    spec: &mut SandboxSpec,
    asked_cwd: bool,
) -> Result<(), ApiError> {
    if matches!(spec.image, Image::Host | Image::Dir(_)) {
        return Ok(());
    }
    let source = source(&spec.image)?;
    let found = shared.images.find(&source).map_err(|e| of_image(&e))?;
    let Pulled { digest, config, .. } = match found {
        Some(found) => found,
        None => {
            let pulled = shared.images.pull(&source, |_| {}).await;
            pulled.map_err(|e| of_image(&e))?
        }
    };
    spec.image_digest = Some(digest.to_string());
    for (key, value) in config.env {
        spec.env.entry(key).or_insert(value);
    }
    if !config.user.is_empty() {
        spec.user = Some(config.user);
    }
    if !asked_cwd && config.workdir != "/" {
        spec.cwd = config.workdir;
    }
    spec.command = config.entrypoint;
    spec.command.extend(config.cmd);
    Ok(())
}

/// Makes sure that the very image of a sandbox that comes from elsewhere is here.
pub(crate) async fn present(shared: &Shared, spec: &SandboxSpec) -> Result<(), ApiError> {
    let missing = match root(shared, spec) {
        Ok(Image::Dir(path)) if !path.is_dir() => {
            let message = format!(
                "the sandbox stands on `{}`, which is not on this host",
                spec.image
            );
            return Err(ApiError::new(ErrorCode::NotFound, message)
                .hint("put the same root file system there first"));
        }
        Ok(_) => return Ok(()),
        Err(missing) => missing,
    };
    let Image::Oci(reference) = &spec.image else {
        return Err(missing);
    };
    let Some(digest) = &spec.image_digest else {
        return Err(missing);
    };
    // By digest: the tag may mean another one by now.
    let named = reference.split('@').next().unwrap_or(reference);
    let exact = Image::Oci(format!("{named}@{digest}"));
    let pulled = shared.images.pull(&source(&exact)?, |_| {}).await;
    pulled.map_err(|e| of_image(&e))?;
    Ok(())
}

/// Returns the image as the isolation level knows it: unpacked.
pub(crate) fn root(shared: &Shared, spec: &SandboxSpec) -> Result<Image, ApiError> {
    let Some(digest) = &spec.image_digest else {
        return Ok(spec.image.clone());
    };
    let gone = || {
        ApiError::new(
            ErrorCode::NotFound,
            format!("image `{}` ({digest}) is not here any more", spec.image),
        )
        .hint(format!(
            "`durable image pull {}` brings it back, if it still is what it was",
            spec.image
        ))
    };
    let parsed = digest.parse().map_err(|_| gone())?;
    let found = shared.images.get(&parsed).map_err(|e| of_image(&e))?;
    Ok(Image::Dir(found.ok_or_else(gone)?.root))
}

fn source(image: &Image) -> Result<Source, ApiError> {
    if matches!(image, Image::Host | Image::Dir(_)) {
        let message = format!("`{image}` is not pulled: it is on this machine");
        return Err(ApiError::new(ErrorCode::Invalid, message));
    }
    let text = image.to_string();
    text.parse()
        .map_err(|e: image::BadSource| ApiError::new(ErrorCode::Invalid, error::chain(&e)))
}

fn of_image(failure: &image::Error) -> ApiError {
    let code = match failure.kind() {
        image::Kind::Invalid => ErrorCode::Invalid,
        image::Kind::NotFound => ErrorCode::NotFound,
        image::Kind::Denied => ErrorCode::Denied,
        image::Kind::InUse => ErrorCode::Conflict,
        image::Kind::Corrupt => ErrorCode::Corrupt,
        image::Kind::Unavailable | image::Kind::Full => ErrorCode::Unavailable,
    };
    let api = ApiError::new(code, error::chain(failure));
    match failure.hint() {
        Some(hint) => api.hint(hint),
        None => api,
    }
}
