//! Buckets of other regions: S3 responds to a request for a bucket of another region with that region's name in a
//! header, which the library does not pass on.

use crate::source::error::SourceError;
use async_trait::async_trait;
use object_store::client::{HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService};

/// The header with the region of the bucket.
const REGION: &str = "x-amz-bucket-region";

/// An S3 client that converts such a response to an error.
#[derive(Debug)]
pub(super) struct Regional<C>(pub(super) C);

#[async_trait]
impl<C: HttpService> HttpService for Regional<C> {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let what = request.uri().path().trim_start_matches('/').to_string();
        let answer = self.0.call(request).await?;
        let status = answer.status();
        // 301 and 307 redirect there, 400 is a signature for another region.
        let is_elsewhere = status.is_redirection() || status.as_u16() == 400;
        let region = answer.headers().get(REGION).and_then(|region| region.to_str().ok());
        match region.filter(|_| is_elsewhere) {
            Some(region) => {
                let region = region.to_string();
                Err(HttpError::new(HttpErrorKind::Unknown, SourceError::Region { what, region }))
            }
            None => Ok(answer),
        }
    }
}
